"""Steps of this worker that are in flight, and its report to the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import jax

from jaxtribute._src.core.callers import frame_of, located
from jaxtribute._src.core.cluster.waiting import RunningClock
from jaxtribute._src.core.execution.compiled_step import CompiledStep
from jaxtribute._src.core.jaxprs.core import numbers_of
from jaxtribute._src.core.observers import Event, Observer
from jaxtribute._src.core.types import Nest

_KEPT = 64
_TURNS = 16


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
      within: true if it is a part of that: of a step that is not handed to the devices yet.
    """

    call: int
    name: str
    told: str
    before: str | None = None
    within: bool = False


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
        self._running = 0
        """The call that the last report found with the devices, before it came back; 0 if there was none."""
        self.batches: int = 0
        """Number of times that they were asked."""

    def on_end(self, event: Event) -> None:
        """Adds a wait for input."""
        self.batches += 1
        self.input_s += event.seconds or 0.0

    def entering(self, name: str, line: str = "") -> None:
        """A step begins to be handed over, called at a line of the user's."""
        self.number += 1
        # Before it is counted: a report must not take it for one that was handed over.
        self._entered = StepInFlight(self.number, name, self.clock.now(), None, self.calls + 1)
        self._count(name, f"step {self.number} of {name}", line)

    def meets(self, what: str, line: str) -> Place:
        """The workers come together without a program, which has no deadline of its own."""
        before = self.name
        self._count(what, f"{what}, after step {self.number}", line)
        self.place = replace(self.place, before=before, within=self._entered is not None)
        return self.place

    def _count(self, name: str, told: str, line: str) -> None:
        self.calls += 1
        if name != self.name:
            self._turns.append((self.calls, name))
        self.name, self._told = name, told
        self.last = f"{told}{line and f', called at {line}'}"
        self.place = Place(self.calls, name, self.last)
        for call in on_call:
            call(self)

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

    def report(self, frame: FrameType | None = None) -> dict[str, Any]:
        """Report that goes to the other workers with each sign of life; of the frame that the main thread is in."""
        call, frame = self.calls, frame or frame_of()
        # While JAX traces or compiles, Python runs; it begins so soon that two reports do not find the call without.
        runs = frame is not None and frame.f_code is CompiledStep._run.__code__  # pyright: ignore[reportPrivateUsage]
        handed, self._running = self._entered is None or (runs and call == self._running), call if runs else 0
        return {
            "step": self.number,
            "call": call,
            "handed": handed,
            "told": self._told,
            "turns": list(self._turns),
            "where": located(frame),
            "input_s": round(self.input_s, 3),
            "waited_s": round(self.waited_s, 3),
        }


on_call: list[Callable[[StepLog], None]] = []
"""Called as each call begins: `last_call` keeps it for the launcher."""


def name_of(report: Mapping[str, Any], call: int) -> str | None:
    """The name of a worker's call; None if the worker has not begun it, or so long ago that it does not tell."""
    names = [name for first, name in report.get("turns", ()) if first <= call <= report["call"]]
    return names[-1] if names else None


def described(report: dict[str, Any]) -> str:
    """A worker's report in words."""
    if not report:
        return "nothing is known of it"
    return f"last seen in {report['told']}, at {report['where']}"
