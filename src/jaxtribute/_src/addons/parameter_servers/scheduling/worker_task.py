"""The loop of one worker: closures in, results out, with the worker's own view of the cluster's variables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from jaxtribute._src import jax_settings
from jaxtribute._src.addons.messaging.encoding import NotPlainError, as_sent, decode, encode
from jaxtribute._src.addons.messaging.errors import pack_error, told, trace_of
from jaxtribute._src.addons.messaging.transport import Endpoint, TaskSettings, deadline
from jaxtribute._src.addons.messaging.wire import Frames, Header, pack
from jaxtribute._src.addons.parameter_servers.scheduling import pickling
from jaxtribute._src.addons.parameter_servers.scheduling.line import Line, attempt_of
from jaxtribute._src.addons.parameter_servers.scheduling.worker_home import WorkerHome
from jaxtribute._src.addons.parameter_servers.server.client import Client, ServerLostError
from jaxtribute._src.addons.parameter_servers.variables.access import Access
from jaxtribute.errors import ClusterError, DeadlineError, OutOfRangeError
from jaxtribute.extending import EndOfData, Kinds
from jaxtribute.typing import Json

_POLL_S = 0.2
_ASK_AGAIN_S = 1.0
_ENDING = frozenset({"servers", "abort", "stop"})
"""Messages after which a server that is waited for will not answer."""


class _Here(threading.local):
    index: int | None = None


_here = _Here()


def experimental_get_current_worker_index() -> int | None:
    """The number of the worker that runs the calling function; None elsewhere.

    Source: `tf.distribute.coordinator.experimental_get_current_worker_index`.
    """
    return _here.index


class WorkerTask:
    """A worker, wherever it runs: `run` serves until `stop`.

    Args:
      index: its number.
      settings: the cluster's.
      coordinator: where the coordinator is called.
      staleness: how many of its own pushes the values that it computes with may be behind.
      timeout_s: how long a server may take to answer.
    """

    def __init__(
        self, index: int, settings: TaskSettings, coordinator: Endpoint, staleness: int, timeout_s: float
    ) -> None:
        self._index, self._timeout_s = index, timeout_s
        self._settings, self._staleness = settings, staleness
        self._home = WorkerHome()
        self._line = Line(index, coordinator, settings.keys)
        self._blobs: dict[int, bytes] = {}
        self._arrived = threading.Condition()
        self._odd: dict[int, bytes] = {}
        self._stopping = threading.Event()
        self._calls: dict[int, Any] = {}
        self._running: tuple[int, int] = (0, 0)
        self._pushes = 0
        self._floor = 0
        # No retry here: a server that is lost ends the closure, which runs again as a whole once the server is back.
        self._client = Client(self._settings.keys, self._timeout_s, self._check)

    # What Ray, or a test, calls from other threads.

    def define(self, key: int, blob: bytes) -> None:
        """Takes a function with the structure of its arguments."""
        with self._arrived:
            self._blobs[key] = blob
            self._arrived.notify_all()

    def take(self, closure: int) -> bytes | None:
        """Returns a pickled result, or error, that is no plain structure; None if there is none any more."""
        return self._odd.pop(closure, None)

    def figures(self) -> dict[str, Json]:
        """Counts of this worker, as values that JSON can hold; callable from any thread."""
        client = self._client
        sizes = {"sent": client.sent_bytes, "received": client.received_bytes, "pushes": client.pushes}
        return sizes | client.staleness.figures()

    def stop(self) -> None:
        """Ends `run`, after what is running."""
        self._stopping.set()

    # The loop.

    def run(self) -> None:
        """Serves until `stop`."""
        from jaxtribute._src.addons.parameter_servers.strategy import ParameterServerStrategy

        self._line.open()
        access = Access(self._client, self._token)
        access.staleness, access.next_is = self._staleness, self._next_is
        self._home.strategy = ParameterServerStrategy.of_worker(access)
        pickling.live_here(self._home)
        _here.index = self._index
        try:
            self._line.say("hello")
            while not self._stopping.is_set():
                message = self._line.next(0) or self._awaited()
                if message is not None:
                    self._handle(*message)
        finally:
            pickling.live_here(None)
            _here.index = None
            self._client.close()
            self._line.close()

    def _awaited(self) -> tuple[Header, list[Any]] | None:
        """The next message, waited for; None if this worker is stopped before it comes."""
        with Kinds.WAIT.during(self, "for the coordinator"):
            while not self._stopping.is_set():
                message = self._line.next(_POLL_S)
                if message is not None:
                    return message
                self._line.say_here()
        return None

    def _check(self) -> None:
        """Ends a wait for a server that is not there any more."""
        self._line.drain()
        if self._stopping.is_set() or any(header["t"] in _ENDING for header, _ in self._line.inbox):
            raise ServerLostError("a parameter server was restarted while it was waited for. HINT: try again.")

    def _next_is(self) -> bool:
        """True if the next thing to do is the same function again."""
        self._line.drain()
        return bool(self._line.inbox) and self._line.inbox[0][0].get("d") == self._running[1]

    def _token(self) -> Header:
        self._pushes += 1
        # The place of the push in the closure, rather than a random name: whoever runs the closure again comes to the
        # same.
        return {"once": [self._running[0], self._pushes], "floor": self._floor}

    def _handle(self, header: Header, arrays: Sequence[Any]) -> None:
        if header["t"] == "stop":
            self._stopping.set()
        elif header["t"] == "who":
            self._line.say("hello")
        elif header["t"] == "servers":
            self._client.connect([Endpoint(**server) for server in header["servers"]], header["epoch"])
        elif header["t"] == "forget":
            for key in header["d"]:
                self._calls.pop(key, None)
            self._home.resources.pop(header["r"], None)
        elif header["t"] == "run":
            self._run(header, arrays)

    def _run(self, header: Header, arrays: Sequence[Any]) -> None:
        """Runs a closure and sends what it comes to, whatever the user's code does: nothing of it ends this thread."""
        key = header["c"]
        self._running, self._pushes, self._floor = (key, header["d"]), 0, header["f"]
        self._line.attempt = attempt_of(header)
        reply: Header = {"t": "done", "w": self._index, "p": self._line.process, "c": key, "n": header["n"]}
        try:
            frames = self._result(header, arrays, reply)
        except ServerLostError:
            frames = pack({**reply, "lost": 1})
        except BaseException as error:  # noqa: BLE001 (the coordinator raises it)
            frames = self._failure(key, error, reply)
        self._line.answer(frames)

    def _result(self, header: Header, arrays: Sequence[Any], reply: Header) -> Frames:
        start = time.perf_counter()
        if header.get("say"):
            self._say_begun(*self._line.attempt)  # before the function is unpickled, as that imports its modules
        function, arguments, settings = self._call(header["d"])
        given = iter(arrays)
        name = str(getattr(function, "__name__", type(function).__name__))
        with jax_settings.within(settings), self._home.strategy.scope(), Kinds.CLOSURE.during(self, name):
            args, kwargs = arguments([decode(plain, given, as_sent) for plain in header["v"]])
            result = function(*args, **kwargs)
        values: list[Any] = []
        try:
            encoded: Header = {"v": encode(result, values)}
        except NotPlainError:
            values.clear()
            # Kept for Ray to fetch: nothing that comes over a socket is ever unpickled.
            self._odd[header["c"]] = cloudpickle.dumps(result)
            encoded = {"odd": 1}
        return pack({**reply, **encoded, "ok": 1, "s": time.perf_counter() - start}, values)

    def _say_begun(self, key: int, sent: int) -> None:
        """Tells the coordinator that a closure runs, which may end this process before a message has left."""
        # A process that ends at once must be known to have ended with this closure, rather than between two: the
        # message has to be out before the function runs, which only the answer tells.
        self._line.say("begun", c=key, n=sent)
        left = deadline(self._timeout_s)
        while left() and not self._stopping.is_set():
            message = self._line.receive(_POLL_S)
            if message is None:
                continue
            if message[0]["t"] == "go":
                if message[0]["c"] == key:
                    return
                continue
            self._line.inbox.append(message)
            if message[0]["t"] in _ENDING:
                return

    def _failure(self, key: int, error: BaseException, reply: Header) -> Frames:
        reply = {**reply, "ok": 0, "error": told(error), "trace": trace_of(error)}
        # Raised where the coordinator waits, it would end a loop of the caller's instead of telling of an error.
        if isinstance(error, EndOfData):
            error = OutOfRangeError("the data of this worker has ended. HINT: repeat() it, or schedule fewer steps.")
        elif isinstance(error, StopIteration):
            error = ClusterError(
                f"the scheduled function has raised {told(error).removesuffix(': ')}, which here would end a loop of "
                "the caller's. HINT: next(iterator, default), or raise another error."
            )
        blob = pack_error(error)
        if blob is not None:
            self._odd[key] = blob
            reply["odd"] = 1
        return pack(reply)

    def _call(self, key: int) -> tuple[Any, Callable[[list[Any]], Any], jax_settings.Settings]:
        """The function, what puts its arguments together, and the settings of JAX that it runs under."""
        if key not in self._calls:
            left = deadline(self._timeout_s)
            with self._arrived:
                while not self._arrived.wait_for(lambda: key in self._blobs, _ASK_AGAIN_S) and left():
                    self._line.say("need", d=key)  # Ray had no way to us yet
                if key not in self._blobs:
                    raise DeadlineError(
                        f"worker {self._index} has waited {self._timeout_s} s for a function that Ray should have "
                        "brought. HINT: is the connection to the coordinator's node up?"
                    )
                blob = self._blobs.pop(key)
            settings, inner = pickling.loads(blob)
            with jax_settings.within(settings):
                function, arguments = pickling.loads(inner)
            if not callable(function):
                raise ClusterError(f"{function!r} was scheduled. HINT: schedule a function.")
            self._calls[key] = function, arguments, settings
        return self._calls[key]
