"""Rules that both sides of a call keep to: codes of errors, keys, and addresses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import zmq

from jaxtribute._src.addons.messaging.transport import Keys
from jaxtribute._src.json_reading import read_json
from jaxtribute.errors import ArgumentError, ClusterError, DeadlineError
from jaxtribute.extending import Address

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, UNAVAILABLE = 0, 1, 2, 3, 4, 5, 14
"""Codes, as TensorFlow and gRPC number them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result, or a code other than `OK` with a message."""

    value: Any = None
    code: int = OK
    message: str = ""


class StatusOrResult:
    """The result of a call that may still be under way; each of its methods waits for it, up to the call's deadline.

    Args:
      wait: waits and returns the outcome.

    Source: `StatusOrResult`, which `tf.distribute.experimental.rpc.Client.call` returns.
    """

    def __init__(self, wait: Callable[[], Outcome]) -> None:
        self._wait = wait

    def is_ok(self) -> bool:
        """Returns True if the function has returned, and has not failed."""
        return self._wait().code == OK

    def get_error(self) -> tuple[int, str]:
        """Returns TensorFlow's number of the error, 0 for none, and the message."""
        outcome = self._wait()
        return outcome.code, outcome.message

    def get_value(self) -> Any:
        """Returns what the function returned, with JAX arrays.

        Raises:
          DeadlineError: there was no answer in time.
          ClusterError: the function failed, there is none of that name, or the server has ended.
        """
        outcome = self._wait()
        if outcome.code == OK:
            return outcome.value
        raise (DeadlineError if outcome.code == DEADLINE_EXCEEDED else ClusterError)(outcome.message)


LAYERS = ("grpc", "zmq")


def make_keys(path: str | PathLike[str]) -> None:
    """Makes new keys, in a file that only its owner can read. Servers and clients need a copy each.

    Args:
      path: the file, which must not be there yet.

    Raises:
      FileExistsError: it is.
    """
    text = json.dumps({name: key.decode() for name, key in asdict(Keys.make()).items()})
    # Made with its rights: a file that is restricted once it is there can be read in between.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")


def read_keys(path: str | PathLike[str] | None) -> Keys | None:
    """The keys of a file that `make_keys` wrote.

    Raises:
      ArgumentError: it holds none, or cannot be read.
    """
    if path is None:
        return None
    try:
        keys = Keys(**{name: key.encode() for name, key in read_json(Path(path), 1 << 16).items()})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ArgumentError(f"{os.fspath(path)} holds no keys: {error}. HINT: make it with rpc.make_keys.") from error
    return keys


def checked(rpc_layer: str, address: str, keys: Keys | None) -> Address:
    """The address of a server.

    Raises:
      ArgumentError: another layer than is known, or an address that other machines can reach, without keys.
      ClusterSpecError: it is malformed.
    """
    if rpc_layer not in LAYERS:
        raise ArgumentError(f"rpc_layer is {rpc_layer!r}. HINT: one of {LAYERS}; both mean ZeroMQ here.")
    found = Address.parse(address)
    if keys is None and not found.is_loopback():
        raise ArgumentError(
            f"{address} can be reached from other machines, and there are no keys. HINT: use an address on 127.0.0.1, "
            'or call rpc.make_keys("rpc.keys") once and pass keys="rpc.keys" to the server and to its clients.'
        )
    return found


def endpoint(address: Address) -> str:
    """ZeroMQ's name of an address."""
    # ZeroMQ listens at addresses, and knows no names there.
    host = "127.0.0.1" if address.host == "localhost" else address.host
    return f"tcp://{Address(host, address.port)}"


def tuned(socket: zmq.Socket[bytes], address: Address) -> zmq.Socket[bytes]:
    """A socket for an address."""
    # What is unsent must not keep a process from ending.
    socket.linger = 0
    socket.sndhwm = 0  # a full queue would refuse; calls are bounded by who waits for them
    socket.ipv6 = ":" in address.host
    return socket
