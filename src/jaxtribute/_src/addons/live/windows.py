"""Windows of time: seconds per part of a run, steps, examples, and the times from step to step.

A window begins at a multiple of its length in seconds since 1970, so that windows of all workers can be compared. The
first hour has windows of a second. Then the length doubles after each 1,800 windows, so that a run of two weeks writes
17,000 of them, and each longer window is made of whole shorter ones.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from jaxtribute.typing import Json

_BASE = time.time() - time.monotonic()
_FIRST, _NEXT = 3600, 1800
_BINS_PER_OCTAVE = 16
"""Bins for the times of steps, per doubling: each is 4.4 % wide."""


def wall(moment: float) -> float:
    """Seconds since 1970 of a moment of the monotonic clock, which nobody sets while the program runs."""
    return round(_BASE + moment, 3)


def length_after(windows: int) -> int:
    """Seconds of a window of which there have been so many before."""
    return 1 if windows < _FIRST else 2 ** (1 + (windows - _FIRST) // _NEXT)


def bin_of(seconds: float) -> int:
    """The bin of a time, in sixteenths of a doubling of a microsecond."""
    return round(_BINS_PER_OCTAVE * math.log2(max(seconds * 1e6, 1.0)))


def seconds_of(number: int) -> float:
    """The time in the middle of a bin."""
    return 2.0 ** (number / _BINS_PER_OCTAVE) * 1e-6


def quantile(bins: dict[int, int], share: float) -> float | None:
    """The time that a share of all steps does not exceed; None without steps."""
    total = sum(bins.values())
    seen = 0
    for number in sorted(bins):
        seen += bins[number]
        if seen >= share * total:
            return seconds_of(number)
    return None


def seconds_text(seconds: float | None) -> str:
    """`0.82 ms`, `3.1 s`, `12 min` or `2:05 h`, `3.1 days`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02} h"
    return f"{seconds / 86_400:.1f} days"


@dataclass
class Window:
    """A window of one worker.

    Attributes:
      start: seconds since 1970.
      length: seconds, of which the window may cover a part.
      buckets: seconds for each part of the time.
      steps: calls of programs that change state.
      last: number of the last step.
      examples: examples that were drawn.
      bins: numbers of steps by the bin of their time.
      metrics: the last value of each metric.
    """

    start: float
    length: int
    buckets: dict[str, float] = field(default_factory=dict[str, float])
    steps: int = 0
    last: int = 0
    examples: int = 0
    bins: dict[int, int] = field(default_factory=dict[int, int])
    metrics: dict[str, float] = field(default_factory=dict[str, float])

    def add_steps(self, seconds: float, count: int) -> None:
        """Adds steps that took so long, each."""
        number = bin_of(seconds)
        self.bins[number] = self.bins.get(number, 0) + count

    def record(self) -> dict[str, Json]:
        """The window as a line of the file."""
        # Keys of a letter: a run of weeks has 17,000 of these lines for each worker.
        line: dict[str, Json] = {
            "k": "w",
            "t": self.start,
            "s": self.length,
            "b": {name: round(seconds, 3) for name, seconds in self.buckets.items()},
        }
        if self.steps:
            line |= {"n": self.steps, "h": self.bins}
        line |= {"st": self.last, "x": self.examples}
        if self.metrics:
            line["m"] = self.metrics
        return line
