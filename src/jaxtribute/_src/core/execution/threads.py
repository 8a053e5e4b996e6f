"""Threads that are lent to one job after the other, and the sign by which they are woken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from jaxtribute._src.core.execution.interrupts import undisturbed

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
        """Runs `job` in a thread of its own."""
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
