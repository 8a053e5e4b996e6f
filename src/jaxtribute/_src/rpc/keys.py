"""The keys that let a client talk to a server which other machines can reach, in a file; and addresses."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from os import PathLike
from pathlib import Path

import zmq

from jaxtribute._src.cluster.addresses import Address
from jaxtribute._src.parameter_servers.messaging.transport import Keys
from jaxtribute.errors import ArgumentError

LAYERS = ("grpc", "zmq")


def make_keys(path: str | PathLike[str]) -> None:
    """Makes new keys, in a file that only its owner can read. Servers and clients need a copy each.

    Args:
      path: the file, which must not be there yet.

    Raises:
      FileExistsError: it is.
    """
    text = json.dumps({name: key.decode() for name, key in asdict(Keys.make()).items()})
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")


def read_keys(path: str | PathLike[str] | None) -> Keys | None:
    """The keys of a file that `make_keys` wrote.

    Raises:
      ArgumentError: it holds none.
    """
    if path is None:
        return None
    try:
        keys = Keys(**{name: key.encode() for name, key in json.loads(Path(path).read_text()).items()})
    except (ValueError, TypeError, AttributeError) as error:
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
    host = "127.0.0.1" if address.host == "localhost" else address.host
    return f"tcp://{Address(host, address.port)}"


def tuned(socket: zmq.Socket[bytes], address: Address) -> zmq.Socket[bytes]:
    """A socket for an address."""
    socket.linger = 0
    socket.ipv6 = ":" in address.host
    return socket
