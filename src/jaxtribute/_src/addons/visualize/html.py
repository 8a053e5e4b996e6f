"""Strategies, distributed values and variables as tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxtribute.extending import Tracer
from jaxtribute.typing import Foreign, Leaf

if TYPE_CHECKING:
    from jaxtribute import DistributedValues, Strategy

_MOST_ROWS = 16
_MOST_LETTERS = 80
_CELL = "style='text-align:left'"


def values_html(value: DistributedValues) -> str:
    """A table with a row for each replica of this process: device, shape, element type, first elements."""
    try:
        parts = value.values
    except Exception:  # noqa: BLE001  # in a traced program, say: what can be shown there is its own text
        parts = None
    if parts is None or any(isinstance(part, Tracer) for part in parts):
        return f"<pre>{escape(repr(value))}</pre>"
    name = getattr(value, "name", None)
    kind = type(value).__name__
    title = kind if name is None else f"{kind} {name!r}"
    rows = [(str(place), *_described(part)) for place, part in enumerate(parts)]
    return _table(title, ("replica", "device", "shape", "dtype", "values"), rows)


def strategy_html(strategy: Strategy) -> str:
    """A table with a row for each device."""
    mesh = strategy.extended.mesh
    count = strategy.num_replicas_in_sync
    here = mesh.local_devices[0].process_index
    rows: list[Sequence[str]] = []
    for place, device in enumerate(mesh.devices):
        held = "this process" if device.process_index == here else f"process {device.process_index}"
        rows.append((str(place // mesh.group_size), str(device), held))
    return _table(f"{type(strategy).__name__}, {count} replica(s)", ("replica", "device", "held by"), rows)


def _described(part: Leaf) -> tuple[str, str, str, str]:
    """Device, shape, element type and first elements of one component."""
    if not isinstance(part, (jax.Array, np.ndarray)):
        return "host", "", type(part).__name__, _cut(repr(part))
    devices: Foreign = sorted(map(str, part.devices())) if isinstance(part, jax.Array) else ["host"]
    where = devices[0] if len(devices) == 1 else f"{devices[0]} and {len(devices) - 1} more"
    return where, str(part.shape), str(part.dtype), _first(part)


def _first(part: jax.Array | np.ndarray) -> str:
    """The first elements, which alone are brought to the host."""
    if isinstance(part, jax.Array) and not part.is_fully_addressable:
        return "on several processes"
    if not part.size:
        return "[]"
    some = part
    while some.ndim > 1:
        some = some[0]
    return _cut(np.array2string(np.asarray(some[:6] if some.ndim else some), precision=4, separator=", "))


def _cut(text: str) -> str:
    one = " ".join(text.split())
    return one if len(one) <= _MOST_LETTERS else one[: _MOST_LETTERS - 1] + "…"


def _row(cell: str, texts: Iterable[str]) -> str:
    # Notebooks push cells to the right, unless each says otherwise.
    return "<tr>" + "".join(f"<{cell} {_CELL}>{escape(one)}</{cell}>" for one in texts) + "</tr>"


def _table(title: str, heads: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"<b>{escape(title)}</b>", f"<table>{_row('th', heads)}"]
    lines += [_row("td", row) for row in rows[:_MOST_ROWS]]
    lines.append("</table>")
    if len(rows) > _MOST_ROWS:
        lines.append(f"and {len(rows) - _MOST_ROWS} more")
    return "\n".join(lines)
