"""The side that calls."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from jaxtribute._src.addons.messaging import wire
from jaxtribute._src.addons.messaging.encoding import NotPlainError, as_jax, decode, encode
from jaxtribute._src.addons.messaging.errors import told
from jaxtribute._src.addons.messaging.transport import Keys
from jaxtribute._src.addons.rpc.protocol import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    OK,
    UNAVAILABLE,
    UNKNOWN,
    Outcome,
    StatusOrResult,
    checked,
    endpoint,
    read_keys,
    tuned,
)
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ClusterError
from jaxtribute.extending import Address

DEFAULT_TIMEOUT_MS = 60_000
_TURN_S = 0.05
_BLOCKING = "_blocking"


class Client:
    """Calls a server's functions. Made by `create`.

    Each function that the server has when the client is made is a method of the client: `client.add(1, 2)` is
    `client.call("add", [1, 2])`, and `client.add_blocking(1, 2)` waits and returns the value.

    Source: `tf.distribute.experimental.rpc.Client`.
    """

    def __init__(self, address: Address, name: str, timeout_ms: int, keys: Keys | None) -> None:
        self._address, self._name, self._timeout_ms = address, name, timeout_ms
        context = zmq.Context(io_threads=1)
        self._socket = tuned(context.socket(zmq.DEALER), address)
        if keys is not None:
            self._socket.curve_serverkey = keys.called_public
            self._socket.curve_publickey, self._socket.curve_secretkey = keys.caller_public, keys.caller_secret
        # ZeroMQ hides the end of a connection and makes another one; calls that were under way would wait in vain.
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._connected = False
        self._socket.connect(endpoint(address))
        self._end = weakref.finalize(self, _close, self._socket, self._monitor, context)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._outcomes: dict[int, Outcome | None] = {}
        """Those of calls that are under way, or not looked at yet."""
        self._methods: frozenset[str] = frozenset()

    @staticmethod
    def create(
        rpc_layer: str,
        address: str,
        name: str = "",
        timeout_in_ms: int = 0,
        *,
        keys: str | PathLike[str] | None = None,
    ) -> Client:
        """Makes a client, which asks the server for its functions.

        Args:
          rpc_layer: `"grpc"`, as in TensorFlow; the messages are ZeroMQ's.
          address: the server's.
          name: a name, for messages.
          timeout_in_ms: how long a call may take unless it says otherwise; a minute for 0.
          keys: a copy of the server's file of keys, if it has one.

        Raises:
          ArgumentError: another layer, or keys are needed and there are none.
          ClusterSpecError: a malformed address.
          DeadlineError: no server answered.

        Source: `tf.distribute.experimental.rpc.Client.create`.
        """
        found = read_keys(keys)
        limit = _checked_ms(timeout_in_ms) or DEFAULT_TIMEOUT_MS
        client = Client(checked(rpc_layer, address, found), name, limit, found)
        try:
            # At once: if there is no server the error comes here, not with the first call.
            client._methods = frozenset(map(str, client._send(None, (), 0).get_value()))
        except BaseException:
            client.close()
            raise
        return client

    def call(
        self,
        method_name: str,
        args: Sequence[Any] | None = None,
        output_specs: Any = None,
        timeout_in_ms: int = 0,
    ) -> StatusOrResult:
        """Calls a function and returns at once.

        Args:
          method_name: its name.
          args: its arguments: arrays, numbers, strings, nests of them.
          output_specs: accepted for compatibility; the result has the structure that the function gave it.
          timeout_in_ms: how long it may take; the client's own limit for 0.

        Raises:
          ArgumentTypeError: arguments that cannot be sent, or a name that is no string.
          ArgumentError: `timeout_in_ms` is no number of milliseconds.
          ClusterError: the client was closed.

        Source: `tf.distribute.experimental.rpc.Client.call`.
        """
        if not isinstance(method_name, str):
            raise ArgumentTypeError(f"method_name is {method_name!r}. HINT: pass a string.")
        if args is not None and not isinstance(args, (tuple, list)):
            raise ArgumentTypeError(f"args is of type {type(args).__name__}. HINT: pass a tuple or list: args=[x].")
        return self._send(method_name, tuple(args or ()), _checked_ms(timeout_in_ms))

    def close(self) -> None:
        """Ends the connection."""
        self._end()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        methods = self.__dict__.get("_methods", ())
        # First as it stands: a function of the server's may itself be called `..._blocking`.
        if name in methods:
            return lambda *args: self.call(name, args)
        if name.removesuffix(_BLOCKING) in methods:
            return lambda *args: self.call(name.removesuffix(_BLOCKING), args).get_value()
        raise AttributeError(f"{self!r} has no {name!r}; the server had {sorted(methods)}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<rpc.Client {self._name!r} of {self._address}>"

    def _send(self, method: str | None, args: Sequence[Any], timeout_ms: int) -> StatusOrResult:
        number, arrays = next(self._numbers), list[Any]()
        try:
            frames = wire.pack({"id": number, "method": method, "args": encode(args, arrays)}, arrays)
        except NotPlainError:
            raise ArgumentTypeError(
                f"the arguments {args!r} of {method!r} cannot be sent. HINT: pass arrays, numbers, strings, and "
                "tuples, lists or dictionaries of them."
            ) from None
        timeout_s = (timeout_ms or self._timeout_ms) / 1e3
        end = time.monotonic() + timeout_s
        with self._lock:
            if self._socket.closed:
                raise ClusterError(f"{self!r} was closed. HINT: make another.")
            self._look_for_end()  # of an earlier connection, which this call has nothing to do with
            self._outcomes[number] = None
            # A server that has refused the keys leaves nowhere to send to: the call is late, and says what that may be.
            with contextlib.suppress(zmq.Again):
                self._socket.send_multipart(frames, zmq.NOBLOCK)
        outcome: list[Outcome] = []
        # The result may be asked for in several threads, and the outcome is there to be taken once.
        one_at_a_time = threading.Lock()

        def wait() -> Outcome:
            with one_at_a_time:
                if not outcome:
                    outcome.append(self._wait(number, end) or self._late(method, timeout_s))
            return outcome[0]

        return StatusOrResult(wait)

    def _wait(self, number: int, end: float) -> Outcome | None:
        """Returns the outcome of a call; None if there is none in time. Whoever waits reads for the others, too."""
        while True:
            with self._lock:
                # A short turn: between two the lock is free for calls of other threads, and for those that wait.
                left = max(0.0, end - time.monotonic())
                try:
                    if self._outcomes[number] is None and self._socket.poll(int(1e3 * min(left, _TURN_S)) + 1):
                        self._take(self._socket.recv_multipart())
                    self._look_for_end()
                except zmq.ZMQError:
                    return self._outcomes.pop(number) or Outcome(None, CANCELLED, f"{self!r} was closed meanwhile")
                if self._outcomes[number] is not None or not left:
                    return self._outcomes.pop(number)

    def _take(self, frames: Sequence[bytes]) -> None:
        number: Any = None
        try:
            header, arrays = wire.unpack(frames)
            number, code = header["id"], header.get("code", OK)
            if self._outcomes.get(number, ...) is not None:
                return  # nobody waits for it any more
            value = decode(header["value"], map(as_jax, arrays)) if code == OK else None
            message = f"{self._address}: {header['message']}" if code != OK else ""
        except Exception as error:  # noqa: BLE001 (it is the call's, if it can be told which)
            value, code = None, UNKNOWN
            message = f"an answer from {self._address} cannot be read: {told(error)}"
        if isinstance(number, int) and number in self._outcomes:
            self._outcomes[number] = Outcome(value, code, message)

    def _look_for_end(self) -> None:
        """Ends the calls under way if the server has ended: what it had taken of them is lost."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected = True
            # Attempts that failed before the first handshake are no end of a connection.
            elif self._connected:
                self._connected = False
                while self._socket.poll(0):
                    self._take(self._socket.recv_multipart())  # what it said before
                text = f"{self._address} has ended, or the connection to it, before it answered. HINT: does it run?"
                # Only values are replaced: the dictionary must keep its keys while it is walked.
                for number, outcome in self._outcomes.items():
                    self._outcomes[number] = outcome or Outcome(None, UNAVAILABLE, text)

    def _late(self, method: str | None, timeout_s: float) -> Outcome:
        what = "a client" if method is None else f"the call of {method!r}"
        return Outcome(
            None,
            DEADLINE_EXCEEDED,
            f"no answer from {self._address} to {what} within {timeout_s:g} s. HINT: does the server run there, with "
            "the same keys? Or give the call more time by timeout_in_ms.",
        )


def _checked_ms(timeout_in_ms: int) -> int:
    number = isinstance(timeout_in_ms, (int, float)) and not isinstance(timeout_in_ms, bool)
    if not number or not 0 <= timeout_in_ms < float("inf"):
        raise ArgumentError(f"timeout_in_ms is {timeout_in_ms!r}. HINT: pass milliseconds, or 0 for the usual time.")
    return timeout_in_ms


def _close(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes], context: zmq.Context[Any]) -> None:
    socket.disable_monitor()
    monitor.close(0)
    socket.close()
    context.term()
