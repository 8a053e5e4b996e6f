"""Reads a profile: the operations on each device, and the activities of the program's own thread."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

Span = tuple[float, float]
COLLECTIVE = re.compile(
    r"all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast|nccl"
    r"|^(psum|pmax|pmin|ppermute|pbroadcast|all_gather|reduce_scatter|all_to_all)",
    re.IGNORECASE,
)
"""Names of operations that wait for other devices: XLA names them by its own operations or by JAX's."""
WINDOW, INPUT_MARK = "jaxtribute: window", "jaxtribute: input"
"""Names of the marks that `record` sets."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on a device, from `start` to `stop` in ns, without the operations that ran inside it."""

    name: str
    spans: tuple[Span, ...]

    @property
    def collective(self) -> bool:
        """True if it meets other devices."""
        return COLLECTIVE.search(self.name) is not None


@dataclass
class Timeline:
    """A profile, cut down to what a breakdown needs. Times in ns.

    Attributes:
      devices: the operations on each device.
      window: the measured steps.
      inputs: when the program waited for its input.
    """

    devices: dict[str, list[Operation]] = field(default_factory=dict[str, list[Operation]])
    window: Span = (0.0, 0.0)
    inputs: list[Span] = field(default_factory=list[Span])


def read_timeline(path: Path) -> Timeline:
    """Reads an `.xplane.pb` file as `jax.profiler` writes it, on CPU, GPU and TPU."""
    from jax.profiler import ProfileData

    with warnings.catch_warnings():
        # JAX makes classes without a module as they are first met; as an error the warning would end the process.
        warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
        return timeline(ProfileData.from_file(str(path)).planes)


def timeline(planes: Iterable[Any]) -> Timeline:
    """The timeline of the planes of a profile."""
    result = Timeline()
    found: dict[str, list[Operation]] = defaultdict(list)
    own = {device.id: place for place, device in enumerate(jax.local_devices(backend="cpu"))}
    for plane in planes:
        # A GPU's or TPU's operations have a plane for each device; those of CPU devices run in the host's threads.
        accelerator = plane.name.startswith("/device:")
        for line in plane.lines:
            events: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
            for event in line.events:
                span = event.start_ns, event.start_ns + event.duration_ns
                if event.name == WINDOW:
                    result.window = span
                elif event.name == INPUT_MARK:
                    result.inputs.append(span)
                elif accelerator:
                    if _runs_operations(line.name):
                        name = dict(event.stats).get("hlo_op") or event.name
                        events[plane.name.removeprefix("/device:")].append((*span, str(name)))
                else:
                    stats = dict(event.stats)
                    if "hlo_op" in stats and not event.name.startswith("end: "):
                        device = stats.get("device_ordinal", 0)
                        events[f"CPU:{own.get(device, device)}"].append((*span, str(stats["hlo_op"])))
            for device, lane in events.items():
                found[device] += innermost(lane)
    for device in sorted(found):
        result.devices[device] = [one for one in found[device] if clip(one.spans, result.window)]
    return result


def _runs_operations(line: str) -> bool:
    """True if a line of a device's plane shows operations: a stream of a GPU, or a TPU's line of that name."""
    return line.startswith("Stream") or line in ("XLA Ops", "Async XLA Ops")


def innermost(events: Iterable[tuple[float, float, str]]) -> list[Operation]:
    """Operations of one thread or stream, each without the time of those that run inside it, as in a loop.

    Args:
      events: `(start, stop, name)` of each, nested or one after another.
    """
    # Of those that begin together the longest first: the others run inside it.
    ordered = sorted(events, key=lambda event: (event[0], -event[1]))
    children: dict[int, list[Span]] = defaultdict(list)
    open_: list[int] = []
    for place, (start, stop, _) in enumerate(ordered):
        while open_ and ordered[open_[-1]][1] <= start:
            open_.pop()
        if open_:
            children[open_[-1]].append((start, stop))
        open_.append(place)
    return [
        Operation(name, tuple(subtract([(start, stop)], children[place])))
        for place, (start, stop, name) in enumerate(ordered)
    ]


def union(spans: Iterable[Span]) -> list[Span]:
    """The moments that are in any of `spans`, which may come in any order and overlap."""
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if stop <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def subtract(spans: Iterable[Span], without: Iterable[Span]) -> list[Span]:
    """The moments of `spans` that are in none of `without`."""
    rest: list[Span] = []
    holes = union(without)
    place = 0
    for start, stop in union(spans):
        while place < len(holes) and holes[place][1] <= start:
            place += 1
        # From `place` again for each span: a hole may reach over several of them.
        at = place
        while at < len(holes) and holes[at][0] < stop:
            if holes[at][0] > start:
                rest.append((start, holes[at][0]))
            start = max(start, holes[at][1])
            at += 1
        if start < stop:
            rest.append((start, stop))
    return rest


def clip(spans: Iterable[Span], window: Span) -> list[Span]:
    """The moments of `spans` that are in `window`."""
    first, last = window
    return [(max(start, first), min(stop, last)) for start, stop in union(spans) if start < last and stop > first]


def total(spans: Iterable[Span]) -> float:
    """Length of `spans` together, each moment counted once."""
    return sum(stop - start for start, stop in union(spans))
