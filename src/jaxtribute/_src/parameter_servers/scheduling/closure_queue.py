"""The queue of scheduled functions: on any free worker, again where one fails; the first error cancels the rest."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from jaxtribute._src.parameter_servers.messaging.errors import told
from jaxtribute._src.parameter_servers.messaging.transport import Endpoint, Hub
from jaxtribute._src.parameter_servers.messaging.wire import Header, pack, unpack
from jaxtribute._src.parameter_servers.scheduling.closures import (
    MAX_ATTEMPTS,
    Closure,
    Definition,
    Numbers,
    Worker,
    outcome_of,
)
from jaxtribute._src.parameter_servers.scheduling.remote_value import RemoteValue
from jaxtribute.errors import CancelledError, ClusterError

_LOG = logging.getLogger(__name__)
_LIMIT = 1 << 18
_TURN_S = 1.0
_LAST_WORDS_S = 0.02


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
        self._gone: list[int] = []
        """Workers that have ended, for the thread to see to."""
        self._error: BaseException | None = None
        self._broken: BaseException | None = None
        self._failed: ClusterError | None = None
        """Reason why nothing can run any more, for ever."""
        self._paused = False
        self._absent_since: float | None = time.monotonic()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="jaxtribute-coordinator", daemon=True)
        self._thread.start()

    # For the user's thread.

    def put(
        self,
        definition: Definition,
        plain: list[Any],
        arrays: list[Any],
        timeout_s: float | None = None,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> RemoteValue:
        """Adds a call.

        Raises:
          ClusterError: the queue has ended.
          Exception: the first error of an earlier call, once.
        """
        with self.changed:
            self._check_thread()
            if self._error is not None or self._broken is not None or self._failed is not None:
                self._wait(lambda: not self._running())
                self._raise()
            if len(self._waiting) >= _LIMIT:
                self._wait(lambda: len(self._waiting) < _LIMIT)
            remote = RemoteValue(self.wait)
            number = self._numbers.begin()
            self._waiting.append(Closure(number, definition, plain, arrays, remote, timeout_s, max_attempts))
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
        """True if all calls have ended.

        Raises:
          Exception: the first error of a call, once.
        """
        with self.changed:
            self._check_thread()
            if not self._running():
                self._raise()
            return not self._running() and not self._waiting

    def wait(self, ready: Callable[[], bool]) -> None:
        """Waits until `ready()`, which a result may change; raises a ClusterError without any worker for too long."""
        with self.changed:
            self._wait(ready)

    def forget(self, definition: Definition) -> None:
        """Lets workers drop a function that has not been scheduled for long."""
        with self.changed:
            self._forgotten.append(definition.key)

    def _running(self) -> bool:
        return any(worker.running for worker in self.workers.values())

    def _wait(self, ready: Callable[[], bool]) -> None:
        while not self.changed.wait_for(lambda: self._failed is not None or ready(), timeout=0.5):
            self._check_thread()
            if self._absent_since is not None and time.monotonic() - self._absent_since > self._patience_s:
                names = ", ".join(map(str, self.workers))
                error = ClusterError(
                    f"none of the workers {names} has been there for {self._patience_s:.0f} s. "
                    "HINT: look for their processes' errors; ParameterServerStrategy(timeout_s=...) waits longer."
                )
                self.cancel(error)
                self._error = None
                raise error
        if not ready() and self._failed is not None:
            raise self._failed

    def _check_thread(self) -> None:
        """Ends everything if the thread has ended without a word: nobody else would tell those who wait."""
        if not self._thread.is_alive() and self._failed is None:
            self.fail("the coordinator's thread has ended")

    def _raise(self) -> None:
        error, self._error = self._error, None
        error = error or self._failed or self._broken
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
                closure.remote.settle(
                    None, CancelledError(f"the function did not run, as another failed: {told(error)}")
                )
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

    def fail(self, reason: str) -> None:
        """Ends everything, for ever: a part of this process that all depend on has ended, for the reason given."""
        with self.changed:
            self._failed = self._failed or ClusterError(
                f"{reason}; nothing that is scheduled can run any more. HINT: close the strategy and make another; "
                "coordinator.save() and jd.Checkpoint keep what is to outlive it."
            )
            self.cancel(self._failed)
            self._error = None
            self._drop_running()
            self.changed.notify_all()

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
        """Gives what a worker that has ended was running to the others; returns when that is done."""
        self._gone.append(index)
        if threading.current_thread() is self._thread:
            self._see_to_gone()
            return
        self._hub.wake()
        with self.changed:
            while self._thread.is_alive() and index in self._gone:
                self.changed.wait(0.5)

    def _see_to_gone(self) -> None:
        if not self._gone:
            return
        # What a process has done, and said, does not run again, and does not count against it.
        self._take_all(self._hub.receive(_LAST_WORDS_S))
        with self.changed:
            for index in self._gone:
                worker = self.workers[index]
                self._orphan(worker)
                worker.route, worker.last_route = None, worker.route or worker.last_route
            self._gone.clear()
            if all(other.route is None for other in self.workers.values()):
                self._absent_since = time.monotonic()
            self.changed.notify_all()

    def _orphan(self, worker: Worker) -> None:
        """Gives to others what a process that has ended was to run; it counts against the function that it ran."""
        closures = list(worker.running.values())
        worker.running.clear()
        worker.knows.clear()
        if closures and worker.route is not None:
            first = closures[0]
            # A process may end between two closures: the first time that counts, later only if it has said that it ran.
            if (first.begun or not first.ended) and self._give_up(worker, first, worker.process):
                closures = closures[1:]
        self._again(closures)

    def _give_up(self, worker: Worker, closure: Closure, ended: Any) -> bool:
        """Notes that a process has ended with a closure; True if it was one too many, and the closure has failed."""
        closure.ended.add(ended)
        count, name = len(closure.ended), closure.definition.name
        if count < closure.max_attempts:
            text = "worker %d has ended while it ran %s, %d of at most %d times; it runs again"
            _LOG.warning(text, worker.index, name, count, closure.max_attempts)
            return False
        self._settle_error(closure, closure.given_up(worker.index))
        return True

    def back(self, index: int) -> None:
        """A worker runs again; if it said so before it was known to have ended, it is asked to say it again."""
        del index
        self._asking = True
        self._hub.wake()

    def _again(self, closures: list[Closure]) -> None:
        if self._error is not None or self._broken is not None or self._failed is not None:
            for closure in closures:
                self._numbers.end(closure.key)
                closure.remote.settle(None, CancelledError("the function did not run again, as another failed"))
            return
        for closure in closures:
            closure.started = None
        self._waiting.extendleft(reversed(closures))

    def close(self) -> None:
        """Ends the thread and tells the workers to end; what has not ended by then is cancelled."""
        self._stopping = True
        self._hub.wake()
        self._thread.join()
        self.fail("the strategy has been closed")

    # In the thread.

    def _serve(self) -> None:
        try:
            while not self._stopping:
                self._turn(self._hub.receive(self._pause_s()))
            self._tell_all(pack({"t": "stop"}))
        except BaseException as error:  # noqa: BLE001 (whatever it is, those who wait are told)
            _LOG.exception("the coordinator's thread ends")
            self.fail(f"the coordinator's thread has ended: {told(error)}")
        finally:
            self._hub.close()

    def _turn(self, messages: list[tuple[Any, list[Any]]]) -> None:
        self._take_all(messages)
        self._see_to_gone()
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
            running = [(worker, worker.first()) for worker in self.workers.values() if worker.route is not None]
        for worker, closure in running:
            if closure is not None and closure.is_late():
                self._tell_late(worker, closure)
        with self.changed:
            if not self._paused:
                self._hand_out()

    def _take_all(self, messages: list[tuple[Any, list[Any]]]) -> None:
        for route, frames in messages:
            try:
                self._take(route, frames)
            except Exception as error:  # noqa: BLE001 (the others go on)
                _LOG.exception("a worker's message could not be read")
                self._settle_unread(route, error)

    def _pause_s(self) -> float:
        """Returns how long to wait for messages: not past the end of a running function's time."""
        with self.changed:
            running = [worker.first() for worker in self.workers.values()]
        return min([_TURN_S, *(closure.left_s() for closure in running if closure is not None)])

    def _tell_late(self, worker: Worker, closure: Closure) -> None:
        """Warns of a function that runs for long; ends one that runs for too long, with its process."""
        stack = worker.stack()  # without the lock: the worker's process may take its time to say
        if closure.timeout_s is None:
            closure.warn_late(worker.index, stack)
            return
        with self.changed:
            if worker.running.pop(closure.key, None) is None:
                return  # it has just been given to another
            self._settle_error(closure, closure.late_error(worker.index, stack))
            self._orphan_behind(worker)
            self.changed.notify_all()
        worker.renew()

    def _orphan_behind(self, worker: Worker) -> None:
        closures = list(worker.running.values())
        worker.running.clear()
        worker.knows.clear()
        worker.route = worker.last_route = None  # it is not heard any more, until another process takes its place
        self._again(closures)

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
                if worker.route is None or worker.process != header["p"]:
                    self._orphan(worker)  # another process in the place of one that is not known yet to have ended
                worker.process, self._absent_since = header["p"], None
                self._place(worker, route)
            return
        if worker.route is None or worker.process != header["p"]:
            return  # of a process that was given up
        if worker.route[1] != route[1]:
            with self.changed:
                self._place(worker, route)  # its connection broke, and was made again
        if header["t"] == "here":
            return
        if header["t"] == "need":
            needed = (closure.definition for closure in list(worker.running.values()))
            for definition in {d.key: d for d in needed if d.key == header["d"]}.values():
                worker.define(definition.key, definition.blob)
            return
        closure = worker.running.get(header["c"])
        if closure is not None and header["n"] != closure.sent:
            return  # of an earlier time that it was handed out
        if header["t"] == "begun":
            if closure is not None:
                closure.begun = True
            self._hub.send(route, pack({"t": "go", "c": header["c"]}))
        elif closure is not None:
            self._finish(worker, closure, header, arrays)

    def _place(self, worker: Worker, route: Any) -> None:
        """Notes where a worker is, and sends again what may have been lost on the way to where it was."""
        worker.route = route
        self._tell(worker)
        for closure in worker.running.values():
            self._hub.send(route, closure.packed(self._numbers.floor()))

    def _finish(self, worker: Worker, closure: Closure, header: Header, arrays: list[Any]) -> None:
        """Takes what a closure has come to; one whose result went with its process runs again."""
        blob = worker.take(closure.key) if header.get("odd") else None
        lost = "lost" in header
        unfetched = not lost and header["ok"] and header.get("odd") and blob is None
        value = error = None
        if not lost and not unfetched:
            value, error = outcome_of(worker, closure, header, arrays, blob)
        with self.changed:
            if worker.running.pop(closure.key, None) is None:
                return
            following = worker.first()
            if following is not None:
                following.started = time.monotonic()
            if lost:
                self._again([closure])
            elif unfetched:
                if not self._give_up(worker, closure, closure.sent):
                    self._again([closure])
            elif error is not None:
                self._settle_error(closure, error)
            else:
                self._numbers.end(closure.key)
                closure.remote.settle(value)
            self.changed.notify_all()

    def _settle_unread(self, route: Any, error: Exception) -> None:
        """Lets the function fail whose worker sent a message that cannot be read: there will be no other."""
        with self.changed:
            for worker in self.workers.values():
                closure = worker.first()
                if closure is not None and worker.route is not None and worker.route[1] == route[1]:
                    worker.running.pop(closure.key)
                    text = f"the result of {closure.definition.name} on worker {worker.index} cannot be read"
                    self._settle_error(closure, ClusterError(f"{text}: {told(error)}"))
            self.changed.notify_all()

    def _settle_error(self, closure: Closure, error: BaseException) -> None:
        self._numbers.end(closure.key)
        closure.remote.settle(None, error)
        self.cancel(error)

    def _hand_out(self) -> None:
        while self._waiting:
            closure = self._waiting[0]
            present = [worker for worker in self.workers.values() if worker.route is not None]
            free = [worker for worker in present if worker.has_room(closure)]
            if not free:
                return
            worker = min(free, key=lambda worker: len(worker.running))
            self._waiting.popleft()
            try:
                self._send(worker, closure)
            except Exception as error:  # noqa: BLE001 (it is this closure's alone)
                worker.running.pop(closure.key, None)
                worker.knows.discard(closure.definition.key)
                text = f"{closure.definition.name} cannot be sent to worker {worker.index}: {told(error)}"
                self._settle_error(closure, ClusterError(f"{text}. HINT: pass smaller or simpler arguments."))

    def _send(self, worker: Worker, closure: Closure) -> None:
        definition = closure.definition
        closure.sent, closure.begun = closure.sent + 1, False
        frames = closure.packed(self._numbers.floor())
        if definition.key not in worker.knows:
            worker.knows.add(definition.key)
            worker.define(definition.key, definition.blob)
        if not worker.running:
            closure.started = time.monotonic()
        worker.running[closure.key] = closure
        self._hub.send(worker.route, frames)
