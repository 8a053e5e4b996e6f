"""A thread in each worker that tells the others it is alive, and learns of theirs."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Protocol

from jaxtribute._src.core.callers import frame_of, stack
from jaxtribute._src.core.cluster.failures import Failure, may_be_broken_collective, say
from jaxtribute._src.core.cluster.roster import rank_of
from jaxtribute._src.core.cluster.step_log import Place, StepInFlight, StepLog, described, name_of
from jaxtribute._src.core.observers import INPUT, observe

if TYPE_CHECKING:
    from jaxtribute._src.core.cluster.roster import Roster

ROOT = "jaxtribute/watch"
STACKS = "jaxtribute/stacks/"
_PULSE_S = 0.5
_SUSPICIOUS_S = 3.0
"""Silence after which a worker is lost once a collective has broken."""
_DEPARTURE_S = 5.0
_WITHOUT_S = 15.0
"""Seconds for which a step may go on after a worker that it needs has ended."""
_COMPILATION_S = 1800.0
"""Additional seconds for a step that may still be compiling, on all workers."""
_IF_ABORTED = "HINT: see its output; if Gloo aborted it, JAXTRIBUTE_DEBUG=collectives names the calls that differ."
_ANSWER_S = 1.0
"""Seconds that the service may take to be told of a failure."""


class Store(Protocol):
    """The methods that are used of the coordination service's client."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False, /) -> None:
        """Sets a key."""
        ...

    def key_value_dir_get(self, key: str, /) -> list[tuple[str, str]]:
        """The keys below a directory and their values."""
        ...


class Pulses:
    """The last pulse of each worker, and when it was heard.

    Args:
      workers: how many there are.
      now: the moment from which on a worker that never pulses is silent.

    Attributes:
      answered: when the service answered last.
    """

    def __init__(self, workers: int, now: float) -> None:
        self._heard = dict.fromkeys(range(workers), now)
        self._last: dict[int, str] = {}
        self.answered = now

    def hear(self, rank: int, pulse: str, now: float) -> None:
        """Notes a worker's pulse; the same as before is none."""
        if self._last.get(rank) != pulse:
            self._last[rank], self._heard[rank] = pulse, now

    def report(self, rank: int) -> dict[str, Any]:
        """The last report of a worker; empty before its first pulse."""
        pulse = self._last.get(rank)
        return {} if pulse is None else json.loads(pulse)["report"]

    def reports(self) -> dict[int, dict[str, Any]]:
        """The last reports of all workers that have pulsed."""
        return {rank: self.report(rank) for rank in list(self._last)}

    def silent(self, now: float, seconds: float) -> set[int]:
        """The workers that have not pulsed for so long."""
        return {rank for rank, heard in self._heard.items() if now - heard > seconds}


looks: list[Callable[[Watch, float], Callable[[float], None]]] = []
"""Each makes, for a watch and its first moment, what is called at each look: `stragglers` is here."""


class Watch:
    """Pulses of all workers, over the coordination service.

    Twice a second each worker writes a new pulse and reads the others'. One whose pulse stands still for `silence_s`
    seconds is lost. A failure, of whatever kind, is written to the service; all who read it end. Seconds for which this
    process was stopped itself, as all are on a machine that sleeps, are not counted.

    Args:
      store: the coordination service's client.
      roster: the workers.
      silence_s: seconds without a pulse after which a worker is lost.
      on_failure: called once, in a thread that watches, with the first failure of another worker.
      steps: what this worker is doing, which each pulse tells the others.
    """

    def __init__(
        self,
        store: Store,
        roster: Roster,
        silence_s: float,
        on_failure: Callable[[Failure], None],
        steps: StepLog,
    ) -> None:
        self._store, self.roster, self._silence_s = store, roster, silence_s
        self._on_failure, self._steps = on_failure, steps
        self.deadline_s: float = math.inf
        """Seconds after which a step that has not finished is an error."""
        self._stop = threading.Event()
        self._observing = ExitStack()
        self._told_s = 0.0
        """Seconds for which this process has stood still, as it has said."""
        self.pulses = Pulses(len(roster.members), self._steps.clock.now())
        self.left: dict[int, str] = {}
        """The workers whose programs have ended well, each with what it did last."""
        self.failure: Failure | None = None
        """The first failure that is known, of this worker or another."""
        self._shown = False
        self._looks = [make(self, self._steps.clock.now()) for make in looks]
        self._threads = [
            threading.Thread(target=target, name=f"jaxtribute-{name}", daemon=True)
            for name, target in (("pulse", self._pulse), ("watch", self._check))
        ]

    def start(self) -> None:
        """Starts to pulse and to watch."""
        self._observing.enter_context(observe(self._steps, INPUT.name))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends both threads; waits for them, at most a few seconds."""
        self._stop.set()
        self._observing.close()
        for thread in self._threads:
            # A failure is found in one of the two threads, which then ends the program and cannot wait for itself.
            if thread is not threading.current_thread():
                thread.join(5 * _PULSE_S)

    def whereabouts(self, ranks: Sequence[int]) -> str:
        """Asks workers for their positions, with the stacks of their main threads; waits at most 1.5 s."""
        stacks: dict[int, str] = {}
        deadline = time.monotonic() + 3 * _PULSE_S
        with suppress(RuntimeError):
            self._store.key_value_set(f"{ROOT}/asked/{self.roster.rank}", "", True)
            while len(stacks) < len(ranks) and time.monotonic() < deadline:
                time.sleep(_PULSE_S / 5)
                for key, text in self._store.key_value_dir_get(STACKS):
                    if rank_of(key) in ranks:
                        stacks[rank_of(key)] = text
        # One that does not answer, as it is gone or its interpreter is stuck, is told by its last pulse alone.
        lines: list[str] = []
        for rank in ranks:
            report = f"{self.roster.names[rank]}: {described(self.pulses.report(rank))}"
            lines.append(f"{report}\n{stacks.get(rank, '')}".rstrip())
        return "\n".join(lines)

    def publish(self, failure: Failure) -> None:
        """Tells the others of a failure.

        Args:
          failure: what happened; one that is known already is kept instead.
        """
        # The first is the cause; those after it mostly follow from it.
        self.failure = self.failure or failure
        self._tell("failure", self.failure.encode())

    def cause(self, error: BaseException) -> Failure:
        """Finds why this worker's program raised: another worker's failure, if a collective broke because of it.

        Waits for it where the error can come of that: a few seconds, in which the one that is gone stands out.

        Args:
          error: what was raised here.
        """
        own = Failure.raised(self.roster.rank, error)
        if may_be_broken_collective(error):
            # Something did break, so a short silence, which is nothing otherwise, tells whose end it was. Without it
            # all workers but the one that is gone would blame themselves, each for the error that it got.
            deadline = time.monotonic() + self.suspect()
            while self.failure is None and time.monotonic() < deadline:
                self._stop.wait(_PULSE_S / 5)
        self.publish(own)
        return self.failure or own

    def depart(self) -> None:
        """Tells the others that this process ends after a failure; the coordinator, whose end is theirs, waits."""
        deadline = time.monotonic() + _DEPARTURE_S
        self._tell("gone")
        with suppress(RuntimeError):
            while self.roster.rank == 0 and time.monotonic() < deadline and not self._all_gone():
                time.sleep(_PULSE_S / 5)

    def _tell(self, kind: str, text: str = "") -> None:
        """Sets a key if the service is still there; where the network is cut, a call may not return for minutes."""

        def set_key() -> None:
            with suppress(RuntimeError):
                self._store.key_value_set(f"{ROOT}/{kind}/{self.roster.rank}", text, True)

        thread = threading.Thread(target=set_key, name="jaxtribute-tell", daemon=True)
        thread.start()
        thread.join(_ANSWER_S)

    def leave(self) -> None:
        """Tells the others that this worker's program has ended well, and in which step."""
        self._say_alive("left")
        self._store.key_value_set(f"{ROOT}/left/{self.roster.rank}", self._steps.last, True)

    def _all_gone(self) -> bool:
        gone: set[int] = set()
        for key, _ in self._store.key_value_dir_get(f"{ROOT}/"):
            if key.split("/")[-2] in ("gone", "left"):
                gone.add(rank_of(key))
        gone |= self.pulses.silent(self._steps.clock.now(), _SUSPICIOUS_S)
        return len(gone) == len(self.roster.members)

    def _pulse(self) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            try:
                # The count makes each pulse another one, also if the program stands still: only then is it heard.
                self._say_alive(count)
                self._read(self._store.key_value_dir_get(f"{ROOT}/"))
                self.pulses.answered = self._steps.clock.now()
            except RuntimeError as error:
                # The coordinator may leave before this process does: that is not a failure.
                if self._stop.wait(_PULSE_S):
                    return
                if self._steps.clock.now() - self.pulses.answered > self._silence_s:
                    self._fail(Failure(0, f"cannot be reached: {str(error).splitlines()[0]}", "", self.roster.rank))
            self._stop.wait(_PULSE_S)

    def _say_alive(self, count: int | str) -> None:
        pulse = json.dumps({"count": count, "report": self._steps.report()})
        self._store.key_value_set(f"{ROOT}/pulse/{self.roster.rank}", pulse, True)

    def _read(self, entries: list[tuple[str, str]]) -> None:
        now = self._steps.clock.now()
        left: dict[int, str] = {}
        failures: list[Failure] = []
        asked = False
        for key, value in entries:
            kind, rank = key.split("/")[-2:]
            if kind == "pulse":
                self.pulses.hear(int(rank), value, now)
            elif kind == "left":
                left[int(rank)] = value
            elif kind == "failure":
                failures.append(Failure.decode(value))
            asked = asked or kind == "asked"
        # Replaced as a whole: other threads read it without a lock.
        self.left = left
        if asked and not self._shown:
            self._shown = True
            self._store.key_value_set(f"{STACKS}{self.roster.rank}", stack(frame_of()), True)
        if failures and self.failure is None:
            # The one that names itself is the cause; others may have failed because of it.
            failures.sort(key=lambda failure: failure.rank != failure.reporter)
            self._fail(failures[0])

    def _check(self) -> None:
        """Looks for silence; in a thread of its own, as a call to a service that is cut off may not return."""
        while not self._stop.wait(_PULSE_S):
            now = self._steps.clock.now()
            self._say_stopped()
            for look in self._looks:
                look(now)
            silent_s = now - self.pulses.answered
            # Rank 0 hosts the service itself, and cannot be cut off from it.
            if silent_s > self._silence_s and self.roster.rank != 0:
                self._fail(Failure(0, f"was lost: no answer for {silent_s:.0f} s", "", self.roster.rank))
                return
            if self._check_steps(now):
                return
            lost = self._lost(now)
            # Pulses come through the service: while that does not answer, all seem silent, and none is blamed.
            if lost is not None and silent_s < self._silence_s / 2:
                summary, told = f"was lost: no pulse for {self._silence_s:.0f} s", described(self.pulses.report(lost))
                self._fail(Failure(lost, summary, f"{told}. {_IF_ABORTED}", self.roster.rank))
                return

    def _lost(self, now: float) -> int | None:
        """Another worker that should run and has not pulsed for too long; None if all have."""
        silent = self.pulses.silent(now, self._silence_s) - self.left.keys() - {self.roster.rank}
        return min(silent, default=None)

    def _say_stopped(self) -> None:
        """Says for how long this process stood still: the others were not silent, but were not heard."""
        stopped_s = self._steps.clock.stopped_s - self._told_s
        if stopped_s:
            self._told_s += stopped_s
            say(f"{self.roster.names[self.roster.rank]} stood still for {stopped_s:.0f} s, and goes on")

    def _check_steps(self, now: float) -> bool:
        """Ends the program where a step is past its deadline, and says which worker holds it up."""
        oldest = self._steps.oldest()
        if oldest is None:
            return False
        if now - oldest.start > _WITHOUT_S and self._is_without(oldest):
            return True
        if now - oldest.start < self.deadline_s:
            return False
        others = [rank for rank in range(len(self.roster.members)) if rank != self.roster.rank]
        behind = min(others, key=lambda rank: self.pulses.report(rank).get("step", 0), default=self.roster.rank)
        theirs = self.pulses.report(behind).get("step", 0)
        if oldest.result is None and theirs >= oldest.number and now - oldest.start < self.deadline_s + _COMPILATION_S:
            # Without a result the step is still traced, compiled or handed over here, and nobody is behind it: the
            # compiler may take many minutes, on all workers at once.
            return False
        if theirs > oldest.number:
            # Even the last of the others has begun a later step, so this worker is the one that is behind.
            behind = self.roster.rank
        summary = (
            f"holds up step {oldest.number} of {oldest.name}, which {self.roster.names[self.roster.rank]} has waited "
            f"{now - oldest.start:.0f} s for"
        )
        # The worker that is waited for stands first in the message.
        everyone = [behind, *(rank for rank in range(len(self.roster.members)) if rank != behind)]
        self._fail(Failure(behind, summary, self.whereabouts(everyone), self.roster.rank))
        return True

    def _is_without(self, step: StepInFlight) -> bool:
        """Ends the program if a worker has ended before a step that all must take part in, or is in another one."""
        for rank, last in self.left.items():
            if self.pulses.report(rank).get("step", 0) < step.number:
                here = f"{self.roster.names[self.roster.rank]} is in step {step.number} of {step.name}"
                hint = "HINT: every worker must make the same calls as often as the others."
                self._fail(Failure(rank, f"ended its program after {last}, while {here}", hint, self.roster.rank))
                return True
        for rank in range(len(self.roster.members)):
            if rank != self.roster.rank and self.parted(rank, Place(step.call, step.name, "")):
                here = f"{self.roster.names[self.roster.rank]} is in step {step.number} of {step.name}"
                summary = f"is in another call, {described(self.pulses.report(rank))}, while {here}"
                self._fail(Failure(rank, summary, self.whereabouts([rank, self.roster.rank]), self.roster.rank))
                return True
        return False

    def parted(self, rank: int, place: Place) -> bool:
        """True if a worker's call of this number, or the one before, is known to be one of something else."""
        report = self.pulses.report(rank)
        elsewhere = name_of(report, place.call) not in (None, place.name)
        return elsewhere or (place.before is not None and name_of(report, place.call - 1) not in (None, place.before))

    def as_before(self, rank: int, place: Place) -> bool:
        """True if a worker runs the step that a call is a part of as it was made before, without that part."""
        report = self.pulses.report(rank)
        return place.within and report.get("call") == place.call - 1 and report.get("handed", False)

    def suspect(self) -> float:
        """Lets a short silence tell which worker is gone, as a collective has broken; returns the seconds to wait."""
        self._silence_s = min(self._silence_s, _SUSPICIOUS_S)
        return 2 * _SUSPICIOUS_S

    def _fail(self, failure: Failure) -> None:
        if self.failure is None:
            self.failure = failure
            self._on_failure(failure)
