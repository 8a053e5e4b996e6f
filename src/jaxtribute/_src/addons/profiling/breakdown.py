"""Step time = compute + collectives + input wait + host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from jaxtribute._src.addons.profiling.timeline import Operation, Span, Timeline, clip, subtract, total, union
from jaxtribute._src.addons.tools.tables import table

_TOP = 8


@dataclass(frozen=True, slots=True)
class Shares:
    """Seconds of a step, which add up to the whole of it.

    Attributes:
      compute: the device computes, whatever else goes on.
      collectives: it does nothing but a collective; that includes the wait for slower devices.
      input: it does nothing, and the program waits for its next batch.
      host: it does nothing for any other reason: Python, dispatch, transfers.
    """

    compute: float
    collectives: float
    input: float
    host: float

    @property
    def step(self) -> float:
        """The whole step."""
        return self.compute + self.collectives + self.input + self.host


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The parts of a step's time.

    Attributes:
      steps: how many were measured.
      mean: the mean over the devices.
      devices: each device.
      operations: the longest operations: name, seconds a step (the mean over the devices), whether a collective.
      compiled: functions that were compiled meanwhile: their time is counted as the host's.
    """

    steps: int
    mean: Shares
    devices: dict[str, Shares]
    operations: tuple[tuple[str, float, bool], ...]
    compiled: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The breakdown as values that JSON can hold; seconds."""
        return {
            "steps": self.steps,
            "step_s": self.mean.step,
            "compiled": self.compiled,
            "mean": asdict(self.mean),
            "devices": {name: asdict(shares) for name, shares in self.devices.items()},
            "operations": [
                {"name": name, "seconds": seconds, "collective": collective}
                for name, seconds, collective in self.operations
            ],
        }

    def __rich__(self) -> RenderableType:
        headings = ("", "compute", "collectives", "input wait", "host")
        shares_of = table(f"A step: {_ms(self.mean.step)}, mean of {self.steps}", headings)
        shares_of.add_row("mean", *_shares(self.mean), style="bold")
        if len(self.devices) > 1:
            for name, shares in self.devices.items():
                shares_of.add_row(name, *_shares(shares))
        longest = table("\nThe longest operations", ("operation", "per step", "of it", ""), words=("operation",))
        for name, seconds, collective in self.operations:
            share = f"{seconds / self.mean.step:.0%}" if self.mean.step else "-"
            longest.add_row(name, _ms(seconds), share, "collective" if collective else "")
        return Group(shares_of, longest if self.operations else Text("No operation was recorded."))


def break_down(timeline: Timeline, steps: int) -> Breakdown:
    """Works out the shares of each device over the window of a timeline."""
    devices = {name: _device(operations, timeline, steps) for name, operations in timeline.devices.items()}
    # Steps that compute nothing have no device in the profile; all of their time is the host's.
    if not devices:
        devices = {"no device": _device([], timeline, steps)}
    # Devices wait for each other, so the mean of their shares adds up to the step as each one's do.
    columns = zip(*map(_parts, devices.values()), strict=True)
    mean = Shares(*(sum(column) / len(devices) for column in columns))
    return Breakdown(steps, mean, devices, _longest(timeline, steps))


def _device(operations: Sequence[Operation], timeline: Timeline, steps: int) -> Shares:
    def spans(collective: bool) -> list[Span]:
        mine: list[Span] = []
        for one in operations:
            if one.collective is collective:
                mine += one.spans
        return clip(mine, timeline.window)

    # Each moment counts once, for the first that holds: what hides behind computing costs nothing.
    compute = spans(collective=False)
    collectives = subtract(spans(collective=True), compute)
    waits = subtract(clip(timeline.inputs, timeline.window), union([*compute, *collectives]))
    parts = [total(compute), total(collectives), total(waits)]
    whole = timeline.window[1] - timeline.window[0]
    return Shares(*(part / 1e9 / steps for part in (*parts, whole - sum(parts))))


def _longest(timeline: Timeline, steps: int) -> tuple[tuple[str, float, bool], ...]:
    sums: dict[tuple[str, bool], float] = defaultdict(float)
    for operations in timeline.devices.values():
        for one in operations:
            sums[one.name, one.collective] += total(clip(one.spans, timeline.window))
    # By name over all devices: they run the same program, and the same operation takes its turn on each.
    ordered = sorted(sums.items(), key=lambda item: -item[1])[:_TOP]
    scale = 1e9 * steps * max(len(timeline.devices), 1)
    return tuple((name, nanoseconds / scale, collective) for (name, collective), nanoseconds in ordered)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _parts(shares: Shares) -> tuple[float, ...]:
    return shares.compute, shares.collectives, shares.input, shares.host


def _shares(shares: Shares) -> list[str]:
    return [f"{_ms(part)} {part / shares.step if shares.step else 0:4.0%}" for part in _parts(shares)]
