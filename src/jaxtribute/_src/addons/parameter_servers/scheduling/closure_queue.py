"""The queue of scheduled functions: those that wait for a worker, and the error that cancels the rest."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from jaxtribute._src.addons.messaging.errors import told
from jaxtribute._src.addons.parameter_servers.scheduling.closures import (
    MAX_ATTEMPTS,
    Closure,
    Definition,
    Numbers,
    Worker,
)
from jaxtribute._src.addons.parameter_servers.scheduling.remote_value import RemoteValue
from jaxtribute.errors import CancelledError, ClusterError
from jaxtribute.typing import HostArray, Leaf

_LIMIT = 1 << 18
"""Number of closures that may wait; more would take the coordinator's memory faster than workers empty it."""


class ClosureQueue:
    """Keeps closures until a worker takes them, and raises what they raised where the user waits.

    The user's thread adds closures and waits for them; the thread of the `Dispatcher` takes them and brings back what
    they come to. A closure that has not ended is in one place alone, in `waiting` or in `running` of one worker, and is
    moved under `changed`: so it is neither run by two workers at once nor lost when one of them ends.

    Args:
      workers: the workers.
      numbers: of closures and pushes.
      patience_s: how long there may be no worker at all while something is to be done.
      wake: wakes the dispatcher's thread.
      is_served: tells whether that thread runs.

    Attributes:
      changed: the lock of all that the two threads share, and what those who wait for a result wait for.
      workers: the workers by their numbers.
      waiting: the closures that no worker has, in the order in which they will be handed out.
      absent_since: the time since which there is no worker; None while there is one.
      done_count: functions that have ended with a result.
      failed_count: functions that have ended with an error; those that it cancelled are none.
    """

    done_count: int
    failed_count: int

    def __init__(
        self,
        workers: Iterable[Worker],
        numbers: Numbers,
        patience_s: float,
        wake: Callable[[], None],
        is_served: Callable[[], bool],
    ) -> None:
        self.changed: threading.Condition = threading.Condition(threading.RLock())
        self.workers: dict[int, Worker] = {worker.index: worker for worker in workers}
        self.waiting: deque[Closure] = deque()
        self.absent_since: float | None = time.monotonic()
        self.patience_s = patience_s
        self._numbers, self._wake, self._is_served = numbers, wake, is_served
        self.done_count = self.failed_count = 0
        self._error: BaseException | None = None
        """The first error of a closure, which is raised once."""
        self._broken: BaseException | None = None
        """The loss of a server, which is raised until `mend`."""
        self._failed: ClusterError | None = None
        """Reason why nothing can run any more, for ever."""

    # For the user's thread.

    def put(
        self,
        definition: Definition,
        plain: Sequence[Leaf],
        arrays: Sequence[HostArray],
        timeout_s: float | None = None,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> RemoteValue:
        """Adds a call.

        Raises:
          ClusterError: the queue has ended.
          Exception: the first error of an earlier call, once.
        """
        with self.changed:
            self._check_served()
            if self.stopped:
                # Until those that run have ended, whoever catches the error could meet one of theirs next.
                self._wait(lambda: not self._running())
                self._raise()
            if len(self.waiting) >= _LIMIT:
                self._wait(lambda: len(self.waiting) < _LIMIT)
            remote = RemoteValue(self.wait)
            number = self._numbers.begin()
            self.waiting.append(Closure(number, definition, plain, arrays, remote, timeout_s, max_attempts))
            first = len(self.waiting) == 1
        if first:  # with others before it the thread is awake, or no worker is free
            self._wake()
        return remote

    def join(self) -> None:
        """Waits for all calls.

        Raises:
          Exception: the first error of a call, once.
          ClusterError: there has been no worker for too long.
        """
        with self.changed:
            self._wait(lambda: not self._running() and not self.waiting)
            self._raise()

    def done(self) -> bool:
        """True if all calls have ended.

        Raises:
          Exception: the first error of a call, once.
        """
        with self.changed:
            self._check_served()
            if not self._running():
                self._raise()
            return not self._running() and not self.waiting

    def wait(self, ready: Callable[[], bool]) -> None:
        """Waits until `ready()`, which a result may change; raises a ClusterError without any worker for too long."""
        with self.changed:
            self._wait(ready)

    def _running(self) -> bool:
        return any(worker.running for worker in self.workers.values())

    def _wait(self, ready: Callable[[], bool]) -> None:
        # By turns: the dispatcher's thread, or the last worker, may go without waking anybody.
        while not self.changed.wait_for(lambda: self._failed is not None or ready(), timeout=0.5):
            self._check_served()
            if self.absent_since is not None and time.monotonic() - self.absent_since > self.patience_s:
                names = ", ".join(map(str, self.workers))
                error = ClusterError(
                    f"none of the workers {names} has been there for {self.patience_s:.0f} s. "
                    "HINT: look for their processes' errors; ParameterServerStrategy(timeout_s=...) waits longer."
                )
                self.cancel(error)
                # Raised here, and so not once more by the next call.
                self._error = None
                raise error
        if not ready() and self._failed is not None:
            raise self._failed

    def _check_served(self) -> None:
        """Ends everything if the dispatcher's thread has ended without a word: none but this tells those who wait."""
        if not self._is_served() and self._failed is None:
            self.fail("the coordinator's thread has ended")

    def _raise(self) -> None:
        error, self._error = self._error, None
        error = error or self._failed or self._broken
        if error is not None:
            raise error

    # What closures come to.

    @property
    def stopped(self) -> bool:
        """True if nothing is to run before an error has been raised, or a lost server is back."""
        return self._error is not None or self._broken is not None or self._failed is not None

    def settle(self, closure: Closure, value: Leaf) -> None:
        """Ends a closure with its result."""
        self.done_count += 1
        self._numbers.end(closure.key)
        closure.remote.settle(value)

    def settle_error(self, closure: Closure, error: BaseException) -> None:
        """Ends a closure with an error, and cancels those that wait."""
        self.failed_count += 1
        self._drop(closure, error)
        self.cancel(error)

    def put_back(self, closures: Sequence[Closure]) -> None:
        """Puts closures that a worker did not end before all others: they have been waited for the longest."""
        if self.stopped:
            for closure in closures:
                self._drop(closure, CancelledError("the function did not run again, as another failed"))
            return
        # The time of their next run counts from its own start.
        for closure in closures:
            closure.started = None
        self.waiting.extendleft(reversed(closures))

    def _drop(self, closure: Closure, error: BaseException) -> None:
        self._numbers.end(closure.key)
        closure.remote.settle(None, error)

    # Ends.

    def cancel(self, error: BaseException) -> None:
        """Drops what has not started, for `error`, which the next call raises."""
        with self.changed:
            if self._error is None:
                self._error = error
            for closure in self.waiting:
                self._drop(closure, CancelledError(f"the function did not run, as another failed: {told(error)}"))
            self.waiting.clear()
            self.changed.notify_all()

    def break_down(self, error: BaseException) -> None:
        """Ends everything for a server that is lost; calls raise `error` until `mend`."""
        with self.changed:
            self.cancel(error)
            # The loss is raised by every call until it is mended, not by the next one alone.
            self._error, self._broken = None, error
            self._drop_running(error)
            self.changed.notify_all()

    def fail(self, reason: str) -> None:
        """Ends everything, for ever: a part of this process that all depend on has ended, for the reason given."""
        with self.changed:
            self._failed = self._failed or ClusterError(
                f"{reason}; nothing that is scheduled can run any more. HINT: close the strategy and make another; "
                "coordinator.save() and jd.Checkpoint keep what is to outlive it."
            )
            self.cancel(self._failed)
            # Kept as the lasting failure; as the error of a call it would be raised once and forgotten.
            self._error = None
            self._drop_running(self._failed)
            self.changed.notify_all()

    def mend(self) -> None:
        """Goes on after `break_down`."""
        with self.changed:
            self._broken = self._error = None

    def _drop_running(self, error: BaseException) -> None:
        for worker in self.workers.values():
            for closure in worker.running.values():
                self._drop(
                    closure, CancelledError(f"the function ended with the state that it worked on: {told(error)}")
                )
            worker.running.clear()
