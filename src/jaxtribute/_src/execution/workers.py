"""Threads that are kept for a moment after their work, so that frequent calls start none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

IDLE_SECONDS = 0.5
"""Seconds that a thread waits for more work before it ends."""


class Signal:
    """Lets one thread wait until another gives the sign; a bare lock, as `threading`'s own are slow to hand over."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def give(self) -> None:
        """Lets the waiting thread, or the next that comes, go on; a sign that nobody took yet stays one."""
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
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []

    def submit(self, job: Callable[[], None]) -> None:
        """Runs `job` in a thread of its own; it must not raise."""
        with self._lock:
            given = bool(self._idle) and self._idle.pop().give(job)
        if not given:
            _Worker(self, job).start()

    def thread_name(self) -> str:
        """The name for a new thread."""
        return self._name

    def wait_for_work(self, worker: _Worker) -> bool:
        """Keeps an idle thread ready; returns whether it got a job before its time was up."""
        with self._lock:
            self._idle.append(worker)
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
    def __init__(self, pool: Workers, job: Callable[[], None]) -> None:
        super().__init__(name=pool.thread_name(), daemon=True)
        self._pool, self._job = pool, job
        self.ready = Signal()
        self.ended = False

    def give(self, job: Callable[[], None]) -> bool:
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
            job()
            del job
            more = self._pool.wait_for_work(self)


def _nothing() -> None:
    pass
