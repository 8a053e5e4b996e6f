"""The coordinator's side of the workers: hands closures out, takes what they come to, and gives them to others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from jaxtribute._src.addons.messaging.errors import told
from jaxtribute._src.addons.messaging.transport import Endpoint, Hub, Route
from jaxtribute._src.addons.messaging.wire import Frames, Header, pack, unpack
from jaxtribute._src.addons.parameter_servers.scheduling.closure_queue import ClosureQueue
from jaxtribute._src.addons.parameter_servers.scheduling.closures import (
    Closure,
    Definition,
    Numbers,
    Worker,
    outcome_of,
)
from jaxtribute.errors import ClusterError
from jaxtribute.extending import Kinds
from jaxtribute.typing import HostArray, Json

_LOG = logging.getLogger(__name__)
_TURN_S = 1.0
_LAST_WORDS_S = 0.02


class Dispatcher:
    """Talks with the workers, in a thread of its own.

    Args:
      hub: where workers call.
      workers: the workers; those that have said hello get closures.
      numbers: of closures and pushes.
      servers: the servers' addresses and the epoch, for workers that come.
      patience_s: how long there may be no worker at all while something is to be done.

    Attributes:
      queue: the closures.
    """

    def __init__(
        self,
        hub: Hub,
        workers: Iterable[Worker],
        numbers: Numbers,
        servers: Callable[[], tuple[list[Endpoint], int]],
        patience_s: float,
    ) -> None:
        self._thread = threading.Thread(target=self._serve, name="jaxtribute-coordinator", daemon=True)
        self.queue: ClosureQueue = ClosureQueue(workers, numbers, patience_s, hub.wake, self._thread.is_alive)
        self._hub, self._numbers, self._servers = hub, numbers, servers
        self._changed, self._workers = self.queue.changed, self.queue.workers
        self._forgotten: list[tuple[frozenset[int], int | None]] = []
        self._gone: list[int] = []
        """Workers that have ended, for the thread to see to."""
        self._paused = self._stopping = False
        # ZeroMQ's sockets belong to one thread: what others want to be said is noted here, and said at the next turn.
        self._announcing = self._aborting = self._asking = False
        self._thread.start()

    # For other threads.

    def forget(self, *definitions: Definition, value: int | None = None) -> None:
        """Lets workers drop functions that will not be scheduled any more, when none of them waits or runs.

        Args:
          definitions: the functions.
          value: the number of a value of each worker's own that they took, which goes with the last of them.
        """
        with self._changed:
            self._forgotten.append((frozenset(definition.key for definition in definitions), value))

    def pause(self) -> None:
        """Starts no more closures until `announce`."""
        with self._changed:
            self._paused = True

    def announce(self) -> None:
        """Tells all workers where the servers are, and starts closures again."""
        with self._changed:
            self._paused = False
            self._announcing = True
        self._hub.wake()

    def abort(self, error: BaseException) -> None:
        """Ends everything for a server that is lost; calls raise `error` until the queue is mended."""
        with self._changed:
            self.queue.break_down(error)
            self._aborting = True
        self._hub.wake()

    def lost(self, index: int) -> None:
        """Hands the closures that a lost worker was running to the other workers; returns when that is done."""
        self._gone.append(index)
        if threading.current_thread() is self._thread:
            self._see_to_gone()
            return
        self._hub.wake()
        with self._changed:
            while self._thread.is_alive() and index in self._gone:
                self._changed.wait(0.5)

    def back(self) -> None:
        """Asks those who are not there to say hello: one that runs again may have done so before its end was known."""
        self._asking = True
        self._hub.wake()

    def close(self) -> None:
        """Ends the thread and tells the workers to end; what has not ended by then is cancelled."""
        self._stopping = True
        self._hub.wake()
        self._thread.join()
        self.queue.fail("the strategy has been closed")

    def figures(self) -> dict[str, Json]:
        """Counts of functions that wait, run and have ended, as values of JSON; callable from any thread."""
        workers = list(self._workers.values())
        return {
            "waiting": len(self.queue.waiting),
            "running": sum(len(worker.running) for worker in workers),
            "done": self.queue.done_count,
            "failed": self.queue.failed_count,
            "absent": [worker.index for worker in workers if worker.route is None],
        }

    # The thread.

    def _serve(self) -> None:
        try:
            with Kinds.TASK.during(self, "coordinator"):
                while not self._stopping:
                    self._turn(self._hub.receive(self._pause_s()))
            self._tell_all(pack({"t": "stop"}))
        except BaseException as error:  # noqa: BLE001 (whatever it is, those who wait are told)
            _LOG.exception("the coordinator's thread ends")
            self.queue.fail(f"the coordinator's thread has ended: {told(error)}")
        finally:
            self._hub.close()

    def _turn(self, messages: list[tuple[Route, Frames]]) -> None:
        self._take_all(messages)
        self._see_to_gone()
        with self._changed:
            self._say_what_is_due()
            self._drop_forgotten()
            running = [(worker, worker.first()) for worker in self._workers.values() if worker.route is not None]
        for worker, closure in running:
            if closure is not None and closure.is_late():
                self._tell_late(worker, closure)
        with self._changed:
            if not self._paused:
                self._hand_out()

    def _pause_s(self) -> float:
        """Returns how long to wait for messages: not past the end of a running function's time."""
        pause_s = _TURN_S
        with self._changed:
            for worker in self._workers.values():
                closure = worker.first()
                if closure is not None:
                    pause_s = min(pause_s, closure.left_s())
        return pause_s

    # What workers are told.

    def _say_what_is_due(self) -> None:
        if self._aborting:
            self._aborting = False
            self._tell_all(pack({"t": "abort"}))
        if self._asking:
            self._asking = False
            for worker in self._workers.values():
                if worker.route is None and worker.last_route is not None:
                    self._hub.send(worker.last_route, pack({"t": "who"}))
        if self._announcing:
            self._announcing = False
            for worker in self._workers.values():
                self._tell_servers(worker)

    def _drop_forgotten(self) -> None:
        if not self._forgotten:
            return
        # Dropped before its last call, a function would be sent again with it, and then stay.
        needed = {closure.definition.key for closure in self.queue.waiting}
        for worker in self._workers.values():
            needed.update(closure.definition.key for closure in worker.running.values())
        due = [(keys, value) for keys, value in self._forgotten if not keys & needed]
        self._forgotten = [(keys, value) for keys, value in self._forgotten if keys & needed]
        for keys, value in due:
            for worker in self._workers.values():
                known = keys & worker.knows
                if worker.route is not None and (known or value is not None):
                    worker.knows -= known
                    self._hub.send(worker.route, pack({"t": "forget", "d": sorted(known), "r": value}))

    def _tell_all(self, frames: Frames) -> None:
        for worker in self._workers.values():
            if worker.route is not None:
                self._hub.send(worker.route, frames)

    def _tell_servers(self, worker: Worker) -> None:
        if worker.route is not None:
            endpoints, epoch = self._servers()
            plain = [endpoint.plain() for endpoint in endpoints]
            self._hub.send(worker.route, pack({"t": "servers", "servers": plain, "epoch": epoch}))

    def _tell_late(self, worker: Worker, closure: Closure) -> None:
        """Warns of a function that runs for long; ends one that runs for too long, with its process."""
        stack = worker.stack()  # without the lock: the worker's process may take its time to say
        if closure.timeout_s is None:
            closure.warn_late(worker.index, stack)
            return
        with self._changed:
            if worker.running.pop(closure.key, None) is None:
                return  # it has just been given to another
            self.queue.settle_error(closure, closure.late_error(worker.index, stack))
            behind = worker.emptied()
            worker.route = worker.last_route = None  # it is not heard any more, until another process takes its place
            self.queue.put_back(behind)
            self._changed.notify_all()
        worker.renew()

    def _hand_out(self) -> None:
        """Gives the closures that wait to workers that have room, each to the one with the fewest."""
        waiting = self.queue.waiting
        while waiting:
            closure = waiting[0]
            free = [worker for worker in self._workers.values() if worker.has_room(closure)]
            if not free:
                return
            worker = min(free, key=lambda worker: len(worker.running))
            waiting.popleft()
            try:
                self._send(worker, closure)
            except Exception as error:  # noqa: BLE001 (it is this closure's alone)
                worker.running.pop(closure.key, None)
                worker.knows.discard(closure.definition.key)
                text = f"{closure.definition.name} cannot be sent to worker {worker.index}: {told(error)}"
                self.queue.settle_error(closure, ClusterError(f"{text}. HINT: pass smaller or simpler arguments."))

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
        assert worker.route is not None
        self._hub.send(worker.route, frames)

    # What workers say.

    def _take_all(self, messages: list[tuple[Route, Frames]]) -> None:
        for route, frames in messages:
            try:
                self._take(route, frames)
            except Exception as error:  # noqa: BLE001 (the others go on)
                _LOG.exception("a worker's message could not be read")
                self._settle_unread(route, error)

    def _take(self, route: Route, frames: Frames) -> None:
        header, arrays = unpack(frames)
        worker, kind = self._workers[header["w"]], header["t"]
        if kind == "hello":
            self._greet(worker, route, header["p"])
            return
        if worker.route is None or worker.process != header["p"]:
            return  # of a process that was given up
        if worker.route[1] != route[1]:
            with self._changed:
                self._place(worker, route)  # its connection broke, and was made again
        if kind == "here":
            return
        if kind == "need":
            self._define_again(worker, header["d"])
            return
        closure = worker.running.get(header["c"])
        if closure is not None and header["n"] != closure.sent:
            return  # of an earlier time that it was handed out
        if kind == "begun":
            if closure is not None:
                closure.begun = True
            self._hub.send(route, pack({"t": "go", "c": header["c"]}))
        elif closure is not None:
            self._finish(worker, closure, header, arrays)

    def _greet(self, worker: Worker, route: Route, process: str) -> None:
        with self._changed:
            if worker.route is None or worker.process != process:
                self._orphan(worker)  # another process in the place of one that is not known yet to have ended
            worker.process, self.queue.absent_since = process, None
            self._place(worker, route)

    def _place(self, worker: Worker, route: Route) -> None:
        """Notes where a worker is, and sends again what may have been lost on the way to where it was.

        What was not lost arrives twice: the worker drops a closure that it has, and answers again for one that it has
        run, which it knows by its number and by how often it was handed out.
        """
        worker.route = route
        self._tell_servers(worker)
        for closure in worker.running.values():
            self._hub.send(route, closure.packed(self._numbers.floor()))

    def _define_again(self, worker: Worker, key: int) -> None:
        """Brings a function once more to a worker that waits for it: Ray may have had no way to it yet."""
        for closure in list(worker.running.values()):
            if closure.definition.key == key:
                worker.define(key, closure.definition.blob)
                return

    def _finish(self, worker: Worker, closure: Closure, header: Header, arrays: list[HostArray]) -> None:
        """Takes what a closure has come to; one whose result went with its process runs again."""
        blob = worker.take(closure.key) if header.get("odd") else None
        lost = "lost" in header
        unfetched = not lost and header["ok"] and header.get("odd") and blob is None
        value = error = None
        if not lost and not unfetched:
            value, error = outcome_of(worker, closure, header, arrays, blob)
        with self._changed:
            if worker.running.pop(closure.key, None) is None:
                return
            following = worker.first()
            if following is not None:
                # It waited behind this one until now; its time counts from here.
                following.started = time.monotonic()
            if lost:
                self.queue.put_back([closure])
            elif unfetched:
                if not self._give_up(worker, closure, closure.sent):
                    self.queue.put_back([closure])
            elif error is not None:
                self.queue.settle_error(closure, error)
            else:
                self.queue.settle(closure, value)
            self._changed.notify_all()

    def _settle_unread(self, route: Route, error: Exception) -> None:
        """Lets the function fail whose worker sent a message that cannot be read: there will be no other."""
        with self._changed:
            for worker in self._workers.values():
                closure = worker.first()
                if closure is not None and worker.route is not None and worker.route[1] == route[1]:
                    worker.running.pop(closure.key)
                    text = f"the result of {closure.definition.name} on worker {worker.index} cannot be read"
                    self.queue.settle_error(closure, ClusterError(f"{text}: {told(error)}"))
            self._changed.notify_all()

    # Workers that have ended.

    def _see_to_gone(self) -> None:
        if not self._gone:
            return
        # What a process has done, and said, does not run again, and does not count against it.
        self._take_all(self._hub.receive(_LAST_WORDS_S))
        with self._changed:
            for index in self._gone:
                worker = self._workers[index]
                self._orphan(worker)
                worker.route, worker.last_route = None, worker.route or worker.last_route
            self._gone.clear()
            if all(other.route is None for other in self._workers.values()):
                self.queue.absent_since = time.monotonic()
            self._changed.notify_all()

    def _orphan(self, worker: Worker) -> None:
        """Gives to others what a process that has ended was to run; it counts against the function that it ran."""
        closures = worker.emptied()
        if closures and worker.route is not None:
            first = closures[0]
            # A process may end between two closures: the first time that counts, later only if it has said that it ran.
            if (first.begun or not first.ended) and self._give_up(worker, first, worker.process):
                closures = closures[1:]
        self.queue.put_back(closures)

    def _give_up(self, worker: Worker, closure: Closure, ended: str | int) -> bool:
        """Notes that a process has ended with a closure; True if it was one too many, and the closure has failed."""
        closure.ended.add(ended)
        count, name = len(closure.ended), closure.definition.name
        if count < closure.max_attempts:
            text = "worker %d has ended while it ran %s, %d of at most %d times; it runs again"
            _LOG.warning(text, worker.index, name, count, closure.max_attempts)
            return False
        self.queue.settle_error(closure, closure.given_up(worker.index))
        return True
