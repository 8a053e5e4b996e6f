"""Running one function a replica, one at a time, so that they can meet half-way."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import Any

from jaxtribute._src.core.callers import caller
from jaxtribute._src.core.execution.interrupts import undisturbed
from jaxtribute._src.core.types import Nest
from jaxtribute._src.jax_settings import AsHere
from jaxtribute.errors import ContextError


class _State(Enum):
    NEW = 0
    RUNNING = 1
    PARKED = 2
    READY = 3
    DONE = 4


class _Abandoned(BaseException):
    """Unwinds a replica that waits for others which failed."""


class _Replica:
    """State of one replica's run."""

    def __init__(self, body: Callable[[], Any]) -> None:
        self.body = body
        self.state = _State.NEW
        self.wake = Signal()
        self.result: Any = None
        self.payload: Any = None
        self.meeting = ""
        self.place = ""


class Rendezvous:
    """Runs replica functions in turn; those that call `meet` wait there until all have come.

    One replica runs at a time, in replica order, so prints and changes of Python state happen in a fixed
    order. The calling thread runs all of them itself as long as none has to wait; another thread comes in only
    where one does.

    Args:
      bodies: the function of each replica.
      idle: the replicas that got no data.
    """

    def __init__(self, bodies: Sequence[Callable[[], Any]], idle: Sequence[int] = ()) -> None:
        self._replicas, self._idle = list(map(_Replica, bodies)), idle
        self._finished = Signal()
        self._left: list[Signal] = []  # for each other thread that has come in, the sign that it has gone
        self._error: BaseException | None = None
        self._abandoned = False
        """True if nobody waits for anybody any more: a thread was interrupted while it handed over."""
        self._merge: Callable[[list[Any]], Sequence[Any]] | None = None

    def run(self) -> list[Any]:
        """Runs all replicas and returns their results.

        Raises:
          ContextError: the replicas do not meet at the same places.
          Whatever the first replica raises that fails.
        """
        try:
            self._run_new(0)
            if not self._abandoned and len(self._in(_State.DONE)) < len(self._replicas):
                self._finished.take()
        except BaseException as error:  # an interrupt of the caller's thread: nobody must be left waiting
            self._abandon(error)
            raise
        finally:
            if self._abandoned:
                self._await_others()
        if self._error is not None:
            raise self._error
        return list(map(attrgetter("result"), self._replicas))

    def _await_others(self) -> None:
        """Waits for the other threads: programs that two threads start at once may wait for each other's devices."""
        end = time.monotonic() + REST_SECONDS
        for left in self._left:
            left.take(max(end - time.monotonic(), 0))

    def meet(self, index: int, meeting: str, payload: Nest, merge: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Waits until every replica has come to the same meeting, and returns this replica's part of the outcome.

        Args:
          index: the replica that calls.
          meeting: what the replicas do together; must be the same for all.
          payload: what this replica brings.
          merge: makes each replica's outcome of all payloads; the last replica to come calls its own.

        Raises:
          ContextError: another replica came to a different meeting, or ended without any.
        """
        if self._abandoned:
            raise _Abandoned
        replica = self._replicas[index]
        try:
            replica.meeting, replica.payload, replica.place = meeting, payload, caller()
            replica.state = _State.PARKED
            self._merge = merge
            self._pass_on()
            replica.wake.take()
        except BaseException as error:  # an interrupt: who runs next, and whether it knows, is open
            self._abandon(error)
            raise
        if self._error is not None:
            raise _Abandoned
        replica.state = _State.RUNNING
        outcome, replica.result = replica.result, None
        return outcome

    def _run_alone(self, index: int, left: Signal) -> None:
        """Runs replica `index` in another thread."""
        self._run_new(index)
        left.give()

    def _run_new(self, index: int) -> None:
        """Runs replica `index` from its start, then those after it that nobody runs yet; raises nothing."""
        try:
            self._run_from(index)
        except BaseException as error:  # noqa: BLE001 (handed to the caller's thread)
            self._abandon(error)

    def _run_from(self, index: int) -> None:
        while True:
            replica = self._replicas[index]
            replica.state = _State.RUNNING
            try:
                replica.result = replica.body()
            except _Abandoned:
                pass
            except BaseException as error:
                if self._abandoned:
                    raise
                error.add_note(f"(raised by replica {index} of {len(self._replicas)})")
                self._fail(error)
            replica.state = _State.DONE
            # Mostly no replica has to wait, and this thread runs one after the other: starting a thread for each would
            # cost more than a small step. One that waits and may go on goes before those that have not begun.
            following = self._next(_State.NEW) if self._error is None and self._next(_State.READY) is None else None
            if following is None:
                self._pass_on()
                return
            index = following

    def _next(self, state: _State) -> int | None:
        for i, replica in enumerate(self._replicas):
            if replica.state is state:
                return i
        return None

    def _in(self, *states: _State) -> list[_Replica]:
        """The replicas in one of some states."""
        return [replica for replica in self._replicas if replica.state in states]

    def _pass_on(self) -> None:
        """Lets the next replica run: one that may go on, else a new one, else all that wait are merged."""
        if self._error is None and self._next(_State.READY) is None:
            new = self._next(_State.NEW)
            if new is not None:
                self._left.append(left := Signal())
                _workers.submit(lambda: self._run_alone(new, left))
                return
            self._bring_together()
        state = _State.READY if self._error is None else _State.PARKED
        if self._error is not None:
            # After an error nobody gets an outcome: those who wait are woken one by one, each to raise
            # `_Abandoned`, so that the `finally` clauses of user code run in turn as well.
            for replica in self._in(_State.READY):
                replica.state = _State.PARKED
        waiting = self._next(state)
        if waiting is not None:
            # Marked before it wakes: this thread may come here again before the other one has run a line.
            self._replicas[waiting].state = _State.RUNNING
            self._replicas[waiting].wake.give()
        elif not self._in(_State.RUNNING, _State.PARKED, _State.READY):
            self._finished.give()

    def _bring_together(self) -> None:
        parked = self._in(_State.PARKED)
        if not parked:
            return
        try:
            # No loop stands in the `try` itself: CPython leaves some jumps back to its head unprotected.
            outcomes = self._merged(parked)
        except BaseException as error:  # noqa: BLE001 (handed to the caller's thread)
            self._fail(error)
            return
        for replica, outcome in zip(parked, outcomes, strict=True):
            replica.result, replica.payload, replica.state = outcome, None, _State.READY

    def _merged(self, parked: Sequence[_Replica]) -> Sequence[Any]:
        """Returns what the meeting gives each replica."""
        if len(parked) < len(self._replicas) or len(set(map(attrgetter("meeting"), parked))) > 1:
            raise self._mismatch()
        assert self._merge is not None
        return self._merge(list(map(attrgetter("payload"), parked)))

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error

    def _abandon(self, error: BaseException) -> None:
        """Ends all waiting, whatever the replicas' states say; each ends when it wakes, or comes to a meeting."""
        self._fail(error)
        self._abandoned = True
        for replica in self._replicas:
            replica.wake.give()
        self._finished.give()

    def _mismatch(self) -> ContextError:
        lines: list[str] = []
        for i, replica in enumerate(self._replicas):
            ended = replica.state is _State.DONE
            lines.append(f"  replica {i} " + ("has ended" if ended else f"calls {replica.meeting} at {replica.place}"))
        hint = "call collectives and merge_call on every replica, outside conditions that depend on the replica"
        if self._idle:
            hint += f"; replicas {list(self._idle)} have no rows, and the loss of no rows may depend on less: leave no "
            hint += "collective out there, compile a step that is not (@jd.function), or drop the remainder"
        return ContextError(
            "the replicas do not meet: each must make the same collective calls in the same order, but\n"
            + "\n".join(lines)
            + f"\nHINT: {hint}."
        )


REST_SECONDS = 2.0
"""Seconds that an interrupt waits for what other threads do in the step; longer would be no interrupt."""
IDLE_SECONDS = 1.0
"""Seconds that a thread waits for more work before it ends."""

_Job = Callable[[], "Callable[[], None] | None"]
"""Work for a thread, which must not raise. It may return what is to be called once the thread is idle."""


class Signal:
    """Lets one thread wait until another gives the sign; a bare lock, as `threading`'s own are slow to hand over."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def give(self) -> None:
        """Lets the waiting thread, or the next that comes, go on; a sign that nobody took yet stays one."""
        # A lock that is let go twice raises. Two signs are one here: `_abandon` gives one to all, whoever has one.
        with suppress(RuntimeError):
            self._lock.release()

    def take(self, timeout: float = -1) -> bool:
        """Waits for the sign, at most `timeout` seconds if that is not negative; returns whether it came."""
        return self._lock.acquire(timeout=timeout)


class Workers:
    """A few threads that run one job after the other and end themselves when none comes.

    Args:
      name: prefix of the threads' names.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []

    def submit(self, job: _Job) -> None:
        """Runs `job` in a thread of its own, in the context variables and the settings of JAX of this one."""
        job = partial(contextvars.copy_context().run, AsHere(job))
        with self._lock:
            taken = bool(self._idle) and self._idle.pop().give(job)
        if not taken:
            # `threading` lists a thread whose start was interrupted for as long as the program runs.
            undisturbed(_Worker(self, job).start)

    def wait_for_work(self, worker: _Worker, told: Callable[[], None] | None) -> bool:
        """Keeps an idle thread ready, and calls `told`; returns whether it got a job before its time was up."""
        with self._lock:
            self._idle.append(worker)
        if told is not None:
            told()
        # Threads are kept for a moment, as the next step needs as many again; and not for ever, as a program that
        # trains no more should have none.
        if worker.ready.take(IDLE_SECONDS):
            return True
        with self._lock:
            if worker in self._idle:
                self._idle.remove(worker)
                return False
        # A job is given at the last moment, or its giver has been interrupted before it could.
        with self._lock:
            worker.ended = not worker.ready.take(0)
        return not worker.ended


class _Worker(threading.Thread):
    def __init__(self, pool: Workers, job: _Job) -> None:
        super().__init__(name=pool.name, daemon=True)
        self._pool, self._job = pool, job
        self.ready = Signal()
        self.ended = False

    def give(self, job: _Job) -> bool:
        """Hands over a job; returns whether the thread is still there to do it."""
        if self.ended:
            return False
        self._job = job
        self.ready.give()
        return True

    def run(self) -> None:
        more = True
        while more:
            job, self._job = self._job, _nothing
            told = job()
            del job  # what it holds must not live on while the thread waits
            more = self._pool.wait_for_work(self, told)


def _nothing() -> None:
    pass


_workers = Workers("jaxtribute-replica")
