"""Budgets in bytes: as users write them, and what a device has."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import numpy as np

from jaxtribute._src.addons.planning.kinds import DEVICES
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from jaxtribute.extending import Context

AUTO = "auto"
_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]i?B|B)?", re.IGNORECASE)
_UNITS = {"b": 1.0} | {
    unit + kind: float(base**power)
    for power, unit in enumerate("kmgt", 1)
    for kind, base in (("b", 1000), ("ib", 1024))
}
_SHARE = 0.92
"""The part of a device's memory for arrays; the program and gaps between arrays take the rest."""
_COPIES = 4
"""Arrays of a variable's size where the slots are not known: the value, the gradient and two slots."""
_NAMES = {
    "v5 lite": "tpu-v5e",
    "v5e": "tpu-v5e",
    "v6 lite": "tpu-v6e",
    "v6e": "tpu-v6e",
    "v5": "tpu-v5p",
    "v4": "tpu-v4",
}


def checked(memory: int | str) -> int | str:
    """A budget that is one.

    Args:
      memory: bytes, a text such as `"12GiB"`, or `"auto"`.

    Raises:
      ArgumentTypeError: it is neither a number nor a text.
      ArgumentError: it is no number of bytes above zero.
    """
    hint = 'HINT: write memory="12GiB", memory=12 * 2**30, or memory="auto".'
    if isinstance(memory, (bool, np.bool_)) or not isinstance(memory, (int, np.integer, str)):
        raise ArgumentTypeError(f"memory is {memory!r} of type {type(memory).__name__}. {hint}")
    if memory == AUTO:
        return AUTO
    if isinstance(memory, str):
        found = _AMOUNT.fullmatch(memory.strip())
        amount = float(found["number"]) * _UNITS[(found["unit"] or "B").lower()] if found is not None else 0.0
    else:
        amount = int(memory)
    if amount < 1:
        raise ArgumentError(f"memory is {memory!r}, which is no number of bytes above zero. {hint}")
    return int(amount)


def available(trained: int) -> int | None:
    """Bytes that a loss may take of the device: what is there without variables, slots and gradients; None: unknown.

    Args:
      trained: bytes of the values that it is differentiated by.
    """
    device = placed()
    stats = memory_stats(device)
    limit = stats.get("bytes_limit") or _described(device)
    if not limit:
        return None
    # Processes must choose alike if they share a replica, and may hold different arrays: they count what all know of.
    if jax.process_count() > 1 or "bytes_in_use" not in stats:
        return max(math.floor(limit * _SHARE) - _COPIES * trained, 1)
    return max(math.floor(limit * _SHARE) - stats["bytes_in_use"] - trained, 1)


def placed() -> Any:
    """A device of the strategy in force."""
    mesh: Any = getattr(Context.current().strategy.extended, "mesh", None)
    return mesh.devices[0] if mesh is not None else jax.devices()[0]


def memory_stats(device: Any) -> dict[str, int]:
    """A device's own figures of its memory; empty if it has none."""
    try:
        return device.memory_stats() or {}
    except Exception:  # noqa: BLE001  # a device that is only described has none, and says so in its own way
        return {}


def _described(device: Any) -> float:
    """The memory of a device by its name; 0 where it is not known."""
    name = known_as(device)
    return 0.0 if name is None else DEVICES[name].memory


def known_as(device: Any) -> str | None:
    """The name under which `DEVICES` has a device, such as `tpu-v5e` or `h100`; None if it has not."""
    kind = str(getattr(device, "device_kind", "")).lower()
    names = _NAMES if "tpu" in kind else {name: name for name in DEVICES}
    return next((name for part, name in names.items() if part in kind), None)
