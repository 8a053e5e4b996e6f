"""Steps of this worker that are in flight, its report to the others, and the line on whom all wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxtribute._src.core.callers import frame_of, located
from jaxtribute._src.core.cluster.waiting import RunningClock
from jaxtribute._src.core.environment import reader, seconds
from jaxtribute._src.core.jaxprs.core import numbers_of
from jaxtribute._src.core.observers import Event, Observer
from jaxtribute._src.core.types import Nest

_KEPT = 64
_TURNS = 16
EVERY = "JAXTRIBUTE_STRAGGLERS_S"
_NOTABLE = 0.1
"""The share of the time that the others must have waited for a worker to be worth a line."""

Reports = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class StepInFlight:
    """A step that has been handed to the devices and may not have finished.

    Attributes:
      number: counts the steps of this worker, from 1.
      name: what it is a step of.
      start: when it was handed over, in seconds of the log's clock.
      result: an array that the step makes; None while it is traced, compiled or handed over.
      call: counts steps and other calls that the workers make together; see `Place`.
    """

    number: int
    name: str
    start: float
    result: Any
    call: int = 0

    def landed(self) -> bool:
        """True if the step has finished, or a later one that uses what it made stands for it."""
        if self.result is None:
            return False
        try:
            # A deleted array was donated to a later step, which is in flight itself and is watched then.
            return self.result.is_deleted() or self.result.is_ready()
        except RuntimeError:
            return True  # donated by the thread that trains, between the two calls


@dataclass(frozen=True)
class Place:
    """A step, or another call that all workers make together, as the one that waits in it tells of it.

    Attributes:
      call: counts steps and such calls of this worker, from 1.
      name: what it is.
      told: it in words, with the line that calls it.
      before: the name of the call before, of a call that is no step: whoever was in another one there does not come.
    """

    call: int
    name: str
    told: str
    before: str | None = None


class StepLog(Observer):
    """The steps of this worker. Written by the thread that trains, read by the one that watches.

    As an observer of `input` it adds up how long the program waits for its batches.

    Args:
      clock: tells when steps begin.
    """

    def __init__(self, clock: RunningClock | None = None) -> None:
        self.clock: RunningClock = clock or RunningClock()
        self._flights: deque[StepInFlight] = deque(maxlen=_KEPT)
        self._entered: StepInFlight | None = None
        self.number: int = 0
        self.name: str = "start"
        self.calls: int = 0
        """Number of steps, and of other calls that all workers make together."""
        self._turns: deque[tuple[int, str]] = deque(maxlen=_TURNS)
        """The last such calls that were of something else than the call before, each with its name."""
        self._told: str = "no step"
        self.last: str = self._told
        """The step that was entered last, and from which line, where the ledger is on."""
        self.place: Place = Place(0, self.name, self.last)
        """The last call that all workers make together."""
        self.waited_s: float = 0.0
        """Seconds spent waiting for the devices, and so for other workers."""
        self.input_s: float = 0.0
        """Seconds spent in distributed iterators."""

    def on_end(self, event: Event) -> None:
        """Adds a wait for input."""
        self.input_s += event.seconds or 0.0

    def entering(self, name: str, line: str = "") -> None:
        """A step begins to be handed over, called at a line of the user's."""
        self.number += 1
        self._count(name, f"step {self.number} of {name}", line)
        self._entered = StepInFlight(self.number, name, self.clock.now(), None, self.calls)

    def meets(self, what: str, line: str) -> Place:
        """The workers come together without a program, which has no deadline of its own."""
        before = self.name
        self._count(what, f"{what}, after step {self.number}", line)
        self.place = replace(self.place, before=before)
        return self.place

    def _count(self, name: str, told: str, line: str) -> None:
        self.calls += 1
        if name != self.name:
            self._turns.append((self.calls, name))
        self.name, self._told = name, told
        self.last = f"{told}{line and f', called at {line}'}"
        self.place = Place(self.calls, name, self.last)

    def dispatched(self, result: Nest) -> None:
        """The step was handed over."""
        self._entered = None
        # One array stands for all: those of a step are ready together.
        leaf = next((x for x in jax.tree.leaves(result) if isinstance(x, jax.Array)), None)
        if leaf is not None:
            # Arrays of random keys do not say whether they are ready.
            self._flights.append(StepInFlight(self.number, self.name, self.clock.now(), numbers_of(leaf), self.calls))

    def oldest(self) -> StepInFlight | None:
        """The step that has been in flight for longest, if any is; else the one that is being handed over."""
        while self._flights:
            first = self._flights[0]
            if not first.landed():
                return first
            self._flights.popleft()
        return self._entered

    def report(self) -> dict[str, Any]:
        """Report that goes to the other workers with each sign of life."""
        return {
            "step": self.number,
            "call": self.calls,
            "told": self._told,
            "turns": list(self._turns),
            "where": located(frame_of()),
            "input_s": round(self.input_s, 3),
            "waited_s": round(self.waited_s, 3),
        }


def name_of(report: Mapping[str, Any], call: int) -> str | None:
    """The name of a worker's call; None if the worker has not begun it, or so long ago that it does not tell."""
    names = [name for first, name in report.get("turns", ()) if first <= call <= report["call"]]
    return names[-1] if names else None


def described(report: dict[str, Any]) -> str:
    """A worker's report in words."""
    if not report:
        return "nothing is known of it"
    return f"last seen in {report['told']}, at {report['where']}"


def interval_s() -> float:
    """Seconds between two lines; 0 for none.

    Raises:
      ConfigError: the environment variable is no number.
    """
    return seconds(EVERY, 60.0, 0.0)


reader(EVERY, interval_s)


def comparison(before: Reports, after: Reports, seconds: float, names: Sequence[str]) -> str | None:
    """Compares the workers' times between two rounds of reports; None if nobody held the others up.

    In a synchronous step all wait for the slowest, which therefore waits least for the devices.

    Args:
      before: what each worker said of itself then.
      after: what it says now.
      seconds: the time between.
      names: the workers' names, by rank.
    """
    ranks = [rank for rank in range(len(names)) if rank in before and rank in after]
    # Before all have reported twice there is nothing to compare: the one that is missing may be the slowest.
    if len(ranks) < len(names) or seconds <= 0:
        return None
    spent = {rank: _spent(before[rank], after[rank]) for rank in ranks}
    if all(steps == 0 for steps, _, _ in spent.values()):
        return None
    # Whoever waited least is the one that the others waited for.
    slowest = min(ranks, key=lambda rank: spent[rank][2])
    most = max(waited for _, _, waited in spent.values())
    if most - spent[slowest][2] < _NOTABLE * seconds:
        return None
    parts = [
        f"{names[rank]} input {waited_input:.1f} s, waiting {waited:.1f} s of {steps} steps"
        for rank, (steps, waited_input, waited) in spent.items()
    ]
    cause = "its input" if spent[slowest][1] > _NOTABLE * seconds else "its own computation"
    return f"in {seconds:.0f} s: {'; '.join(parts)}. The others wait for {names[slowest]}, for {cause}"


def _spent(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[int, float, float]:
    """Steps, seconds of waiting for input, and seconds of waiting for the devices."""
    steps, waited_input, waited = (after[key] - before[key] for key in ("step", "input_s", "waited_s"))
    return int(steps), float(waited_input), float(waited)
