"""The queue of scheduled functions: on any free worker, again where one fails; the first error cancels the rest."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from jaxtribute.coordinator.remote_value import RemoteValue
from jaxtribute.coordinator.results import decode
from jaxtribute.coordinator.transport import Endpoint, Hub
from jaxtribute.coordinator.wire import pack, unpack
from jaxtribute.errors import CancelledError, ClusterError

_LOG = logging.getLogger(__name__)
_LIMIT = 1 << 18
_SHORT_S = 0.02
_AHEAD = 4
"""How many closures of a short function may wait at a worker, so that it never waits for the next."""


@dataclass(slots=True)
class Definition:
    """A function with the structure and the constants of its arguments, as workers know it."""

    key: int
    blob: bytes
    seconds: float | None = None
    """How long it runs, of late."""


@dataclass(slots=True, eq=False)
class Closure:
    """One call of a function."""

    key: int
    definition: Definition
    plain: list[Any]
    arrays: list[Any]
    remote: RemoteValue
    worker: int = -1
    attempts: int = 0


@dataclass(slots=True)
class Worker:
    """What the coordinator knows of a worker."""

    index: int
    define: Callable[[int, bytes], None]
    take: Callable[[int], Any]
    route: Any = None
    """Where it is; None while it is not there."""
    last_route: Any = None
    running: dict[int, Closure] = field(default_factory=dict[int, Closure])
    knows: set[int] = field(default_factory=set[int])


class Numbers:
    """Numbers of closures and of direct pushes, and the least that is still under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1
        self._open: dict[int, None] = {}

    def begin(self) -> int:
        """A new number."""
        with self._lock:
            self._next += 1
            self._open[self._next] = None
            return self._next

    def end(self, number: int) -> None:
        """What had the number has ended."""
        with self._lock:
            self._open.pop(number, None)

    def last(self) -> int:
        """The last number that was given."""
        with self._lock:
            return self._next

    def skip(self, number: int) -> None:
        """Gives no numbers up to this one any more."""
        with self._lock:
            self._next = max(self._next, number)

    def floor(self) -> int:
        """All numbers below have ended."""
        with self._lock:
            return next(iter(self._open), self._next + 1)


class ClosureQueue:
    """Hands closures to workers and takes their results, in a thread of its own.

    Args:
      hub: where workers call.
      workers: the workers; those that have said hello get closures.
      numbers: of closures and pushes.
      servers: the servers' addresses and the epoch, for workers that come.
      patience_s: how long there may be no worker at all while something is to be done.
    """

    def __init__(
        self,
        hub: Hub,
        workers: Iterable[Worker],
        numbers: Numbers,
        servers: Callable[[], tuple[list[Endpoint], int]],
        patience_s: float,
    ) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.workers = {worker.index: worker for worker in workers}
        self._hub, self._numbers, self._servers, self._patience_s = hub, numbers, servers, patience_s
        self._waiting: deque[Closure] = deque()
        self._forgotten: list[int] = []
        self._error: BaseException | None = None
        self._broken: BaseException | None = None
        self._paused = False
        self._absent_since: float | None = time.monotonic()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="jaxtribute-coordinator", daemon=True)
        self._thread.start()

    # For the user's thread.

    def put(self, definition: Definition, plain: list[Any], arrays: list[Any]) -> RemoteValue:
        """Adds a call.

        Raises:
          Exception: the first error of an earlier call, once.
        """
        with self.changed:
            if self._error is not None or self._broken is not None:
                self._wait(lambda: not self._running())
                self._raise()
            if len(self._waiting) >= _LIMIT:
                self._wait(lambda: len(self._waiting) < _LIMIT)
            remote = RemoteValue(self.wait)
            self._waiting.append(Closure(self._numbers.begin(), definition, plain, arrays, remote))
            wake = len(self._waiting) == 1
        if wake:
            self._hub.wake()
        return remote

    def join(self) -> None:
        """Waits for all calls.

        Raises:
          Exception: the first error of a call, once.
          ClusterError: there has been no worker for too long.
        """
        with self.changed:
            self._wait(lambda: not self._running() and not self._waiting)
            self._raise()

    def done(self) -> bool:
        """Whether all calls have ended.

        Raises:
          Exception: the first error of a call, once.
        """
        with self.changed:
            if not self._running():
                self._raise()
            return not self._running() and not self._waiting

    def wait(self, ready: Callable[[], bool]) -> None:
        """Waits until `ready()`, which a result may change.

        Raises:
          ClusterError: there has been no worker for too long.
        """
        with self.changed:
            self._wait(ready)

    def forget(self, definition: Definition) -> None:
        """Lets workers drop a function that has not been scheduled for long."""
        with self.changed:
            self._forgotten.append(definition.key)

    def _running(self) -> bool:
        return any(worker.running for worker in self.workers.values())

    def _wait(self, ready: Callable[[], bool]) -> None:
        while not self.changed.wait_for(ready, timeout=0.5):
            if self._absent_since is not None and time.monotonic() - self._absent_since > self._patience_s:
                names = ", ".join(str(index) for index in self.workers)
                error = ClusterError(
                    f"none of the workers {names} has been there for {self._patience_s:.0f} s. "
                    "HINT: look for their processes' errors; ParameterServerStrategy(timeout_s=...) waits longer."
                )
                self.cancel(error)
                self._error = None
                raise error

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is None and self._broken is not None:
            error = self._broken
        if error is not None:
            raise error

    # For the cluster.

    def cancel(self, error: BaseException) -> None:
        """Drops what has not started, for `error`, which the next call raises."""
        with self.changed:
            if self._error is None:
                self._error = error
            for closure in self._waiting:
                self._numbers.end(closure.key)
                closure.remote.settle(None, CancelledError(f"the function did not run, as another failed: {error}"))
            self._waiting.clear()
            self.changed.notify_all()

    def break_down(self, error: BaseException) -> None:
        """Ends everything for a server that is lost; calls raise `error` until `mend`."""
        with self.changed:
            self.cancel(error)
            self._error, self._broken = None, error
            self._drop_running()
            self._aborting = True
            self.changed.notify_all()
        self._hub.wake()

    def mend(self) -> None:
        """Goes on after `break_down`."""
        with self.changed:
            self._broken = self._error = None
        self.announce()

    def _drop_running(self) -> None:
        for worker in self.workers.values():
            for closure in worker.running.values():
                self._numbers.end(closure.key)
                closure.remote.settle(None, CancelledError("the function ended with the state that it worked on"))
            worker.running.clear()

    def pause(self) -> None:
        """Starts no more closures until `announce`."""
        with self.changed:
            self._paused = True

    def announce(self) -> None:
        """Tells all workers where the servers are, and starts closures again."""
        with self.changed:
            self._paused = False
            self._announcing = True
        self._hub.wake()

    _announcing = _aborting = _asking = False

    def lost(self, index: int) -> None:
        """A worker has ended: what it was running goes to the others."""
        with self.changed:
            worker = self.workers[index]
            _LOG.info("worker %d has ended; %d functions run elsewhere", index, len(worker.running))
            worker.route, worker.last_route = None, worker.route or worker.last_route
            worker.knows.clear()
            self._again(list(worker.running.values()))
            worker.running.clear()
            if all(other.route is None for other in self.workers.values()):
                self._absent_since = time.monotonic()
            self.changed.notify_all()
        self._hub.wake()

    def back(self, index: int) -> None:
        """A worker runs again; if it said so before it was known to have ended, it is asked to say it again."""
        del index
        self._asking = True
        self._hub.wake()

    def _again(self, closures: list[Closure]) -> None:
        if self._error is not None or self._broken is not None:
            for closure in closures:
                self._numbers.end(closure.key)
                closure.remote.settle(None, CancelledError("the function did not run again, as another failed"))
        else:
            self._waiting.extendleft(reversed(closures))

    def close(self) -> None:
        """Ends the thread and tells the workers to end."""
        self._stopping = True
        self._hub.wake()
        self._thread.join()

    # In the thread.

    def _serve(self) -> None:
        while not self._stopping:
            for route, frames in self._hub.receive(1.0):
                try:
                    self._take(route, frames)
                except Exception:  # noqa: BLE001 (the others go on)
                    _LOG.exception("a worker's message could not be read")
            with self.changed:
                if self._aborting:
                    self._aborting = False
                    self._tell_all(pack({"t": "abort"}))
                if self._asking:
                    self._asking = False
                    for worker in self.workers.values():
                        if worker.route is None and worker.last_route is not None:
                            self._hub.send(worker.last_route, pack({"t": "who"}))
                if self._announcing:
                    self._announcing = False
                    for worker in self.workers.values():
                        self._tell(worker)
                self._drop_forgotten()
                if not self._paused:
                    self._hand_out()
        self._tell_all(pack({"t": "stop"}))
        self._hub.close()

    def _drop_forgotten(self) -> None:
        if not self._forgotten:
            return
        running = (closure for worker in self.workers.values() for closure in worker.running.values())
        # Dropped before its last call, a function would be sent again with it, and then stay.
        needed = {closure.definition.key for closure in (*self._waiting, *running)}
        for key in self._forgotten:
            for worker in self.workers.values() if key not in needed else ():
                if worker.route is not None and key in worker.knows:
                    worker.knows.discard(key)
                    self._hub.send(worker.route, pack({"t": "forget", "d": key}))
        self._forgotten = [key for key in self._forgotten if key in needed]

    def _tell_all(self, frames: list[Any]) -> None:
        for worker in self.workers.values():
            if worker.route is not None:
                self._hub.send(worker.route, frames)

    def _tell(self, worker: Worker) -> None:
        if worker.route is not None:
            endpoints, epoch = self._servers()
            told = {"t": "servers", "servers": [endpoint.plain() for endpoint in endpoints], "epoch": epoch}
            self._hub.send(worker.route, pack(told))

    def _take(self, route: Any, frames: list[Any]) -> None:
        header, arrays = unpack(frames)
        worker = self.workers[header["w"]]
        if header["t"] == "hello":
            with self.changed:
                worker.route, self._absent_since = route, None
                self._again(list(worker.running.values()))
                worker.running.clear()
                worker.knows.clear()
                self._tell(worker)
            return
        if worker.route is None or worker.route[1] != route[1]:
            return  # of a process that was given up
        if header["t"] == "need":
            needed = (closure.definition for closure in list(worker.running.values()))
            for definition in {d.key: d for d in needed if d.key == header["d"]}.values():
                worker.define(definition.key, definition.blob)
            return
        odd = worker.take(header["c"]) if header.get("odd") else None
        with self.changed:
            closure = worker.running.pop(header["c"], None)
            if closure is None:
                return
            if "lost" in header:
                self._again([closure])
                return
            self._numbers.end(closure.key)
            if "s" in header:
                before = closure.definition.seconds
                closure.definition.seconds = header["s"] if before is None else 0.8 * before + 0.2 * header["s"]
            if header["ok"]:
                value = odd if header.get("odd") else decode(header["v"], iter(arrays))
                closure.remote.settle(value)
            else:
                error = odd if isinstance(odd, BaseException) else ClusterError(header["error"])
                error.add_note(f"It was raised on worker {worker.index}:\n{header['trace']}")
                closure.remote.settle(None, error)
                self.cancel(error)
            self.changed.notify_all()

    def _hand_out(self) -> None:
        while self._waiting:
            closure = self._waiting[0]
            present = [worker for worker in self.workers.values() if worker.route is not None]
            free = [worker for worker in present if self._room(worker, closure)]
            if not free:
                return
            worker = min(free, key=lambda worker: len(worker.running))
            self._waiting.popleft()
            self._send(worker, closure)

    def _room(self, worker: Worker, closure: Closure) -> bool:
        """Whether a worker may take another closure: at once, or behind others that will not keep it waiting."""
        if not worker.running:
            return True
        seconds = [other.definition.seconds for other in (*worker.running.values(), closure)]
        return len(seconds) <= _AHEAD and all(s is not None and s < _SHORT_S for s in seconds)

    def _send(self, worker: Worker, closure: Closure) -> None:
        definition = closure.definition
        if definition.key not in worker.knows:
            worker.knows.add(definition.key)
            worker.define(definition.key, definition.blob)
        closure.worker, closure.attempts = worker.index, closure.attempts + 1
        worker.running[closure.key] = closure
        header = {"t": "run", "c": closure.key, "d": definition.key, "v": closure.plain, "f": self._numbers.floor()}
        self._hub.send(worker.route, pack(header, closure.arrays))
