"""The side that is called."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from jaxtribute._src.addons.messaging import wire
from jaxtribute._src.addons.messaging.encoding import NotPlainError, as_jax, decode, encode
from jaxtribute._src.addons.messaging.errors import told
from jaxtribute._src.addons.messaging.transport import KeyCheck, Keys
from jaxtribute._src.addons.rpc.protocol import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    UNKNOWN,
    checked,
    endpoint,
    read_keys,
    tuned,
)
from jaxtribute.errors import ArgumentTypeError, ClusterError
from jaxtribute.extending import Address
from jaxtribute.typing import Json

_LOG = logging.getLogger(__name__)

Functions = Mapping[str, Callable[..., Any]]


class Server:
    """Answers calls of functions, one after the other, in a thread of its own. Made by `create`.

    Nothing that comes is unpickled: arguments and results are arrays, numbers, strings, and tuples, lists and
    dictionaries of them.

    Source: `tf.distribute.experimental.rpc.Server`.
    """

    def __init__(self, address: Address, keys: Keys | None) -> None:
        self._address, self._keys = address, keys
        self._functions: dict[str, Callable[..., Any]] = {}
        self._end: Callable[[], Any] | None = None

    @staticmethod
    def create(rpc_layer: str, address: str, *, keys: str | PathLike[str] | None = None) -> Server:
        """Makes a server, which listens once it is started.

        Args:
          rpc_layer: `"grpc"`, as in TensorFlow; the messages are ZeroMQ's.
          address: where it will listen: `"127.0.0.1:2222"`; the system chooses the port for 0.
          keys: a file that `make_keys` wrote. Only clients with a copy can call then, and all is encrypted. Needed for
            an address that other machines can reach.

        Raises:
          ArgumentError: another layer, or keys are needed and there are none.
          ClusterSpecError: a malformed address.

        Source: `tf.distribute.experimental.rpc.Server.create`.
        """
        found = read_keys(keys)
        return Server(checked(rpc_layer, address, found), found)

    @property
    def address(self) -> str:
        """Address at which the server listens, or will."""
        return str(self._address)

    def register(self, method_name: str, func: Callable[..., Any]) -> None:
        """Lets clients call a function.

        Args:
          method_name: the name that they call it by.
          func: a `jd.function`, or any other.

        Raises:
          ArgumentTypeError: it is no function, or the name no string.

        Source: `tf.distribute.experimental.rpc.Server.register`.
        """
        if not isinstance(method_name, str):
            raise ArgumentTypeError(f"method_name is {method_name!r}. HINT: pass a string.")
        if not callable(func):
            raise ArgumentTypeError(f"register({method_name!r}, {func!r}). HINT: pass a function.")
        self._functions[method_name] = func

    def start(self) -> None:
        """Begins to listen; does nothing if it does already.

        Raises:
          ClusterError: the address is taken, or not one of this machine.

        Source: `tf.distribute.experimental.rpc.Server.start`.
        """
        if self._end is not None:
            return
        context = zmq.Context(io_threads=1)
        authenticator = None if self._keys is None else _admitting(context, self._keys)
        socket = tuned(context.socket(zmq.ROUTER), self._address)
        if self._keys is not None:
            socket.curve_server = True
            socket.curve_publickey, socket.curve_secretkey = self._keys.called_public, self._keys.called_secret
        thread = threading.Thread(target=_serve, args=(socket, self._functions), name="jaxtribute-rpc", daemon=True)
        try:
            socket.bind(endpoint(self._address))
        except zmq.ZMQError as error:
            socket.close()
            _stop(context, authenticator, None)
            raise ClusterError(f"cannot listen at {self.address}: {error}. HINT: choose another port.") from error
        # With port 0 the system has chosen one, which clients must be told.
        bound = str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        self._address = Address(self._address.host, int(bound.rpartition(":")[2]))
        thread.start()
        self._end = weakref.finalize(self, _stop, context, authenticator, thread)  # at the latest when Python ends

    def stop(self) -> None:
        """Stops listening, once the call that is under way has ended."""
        if self._end is not None:
            self._end()
            self._end = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _admitting(context: zmq.Context[Any], keys: Keys) -> ThreadAuthenticator:
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("*", credentials_provider=KeyCheck(keys.caller_public))
    return authenticator


def _stop(
    context: zmq.Context[Any], authenticator: ThreadAuthenticator | None, thread: threading.Thread | None
) -> None:
    if authenticator is not None:
        authenticator.stop()
    context.term()  # which ends the thread's waiting
    if thread is not None:
        thread.join()


def _serve(socket: zmq.Socket[bytes], functions: Functions) -> None:
    try:
        while True:
            try:
                identity, *frames = socket.recv_multipart()
                socket.send_multipart([identity, *_answer(frames, functions)])
            except zmq.ZMQError as error:
                if isinstance(error, zmq.ContextTerminated) or socket.closed:
                    return
                _LOG.debug("an answer could not be sent", exc_info=True)  # its caller is gone
    finally:
        socket.close()  # callers notice that, and are told that the server has ended


def _answer(frames: Sequence[bytes], functions: Functions) -> wire.Frames:
    """Answers a call. Nothing that a stranger sends, and nothing that a function does, ends the server's thread."""
    number: Any = None
    try:
        header, arrays = wire.unpack(frames)
        # Exactly an int: True would be taken for call number 1.
        if type(header["id"]) is not int:
            raise ArgumentTypeError("the call has no number")
        number, method = header["id"], header["method"]
        if method is None:
            return wire.pack({"id": number, "value": encode(sorted(functions), [])})
        if method not in functions:
            return _failed(number, NOT_FOUND, f"there is no {method!r}; there are {sorted(functions)}")
        args = decode(header["args"], map(as_jax, arrays))
    except Exception as error:  # noqa: BLE001 (whatever a stranger sends)
        return _failed(number, INVALID_ARGUMENT, f"the call cannot be read: {told(error)}")
    try:
        results: list[Any] = []
        return wire.pack({"id": number, "value": encode(functions[method](*args), results)}, results)
    except NotPlainError:
        return _failed(number, INVALID_ARGUMENT, f"what {method!r} returned is not made of arrays, numbers and strings")
    except BaseException as error:  # noqa: BLE001 (it is the caller's)
        return _failed(number, UNKNOWN, f"{method!r} failed: {told(error)}")


def _failed(number: Json, code: int, message: str) -> wire.Frames:
    return wire.pack({"id": number, "code": code, "message": message})
