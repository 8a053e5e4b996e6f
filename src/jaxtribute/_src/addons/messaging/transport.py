"""Carrying messages: ZeroMQ within a machine over a private folder, between machines over TCP with CURVE keys."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import garbage

from jaxtribute._src.addons.messaging.wire import Frames
from jaxtribute.extending import Folder

Route: TypeAlias = tuple["zmq.Socket[bytes]", bytes]
"""Way to a caller: the socket that it came through, and its identity there, which is another for each connection."""

_BUFFER = 4 << 20
_LINGER_MS = 200


@dataclass(frozen=True, slots=True)
class Keys:
    """The CURVE keys of one cluster: one pair for those who are called, one for those who call.

    They are made by the coordinator and reach the other processes through Ray alone.
    """

    called_public: bytes
    called_secret: bytes
    caller_public: bytes
    caller_secret: bytes

    @classmethod
    def make(cls) -> Keys:
        """New keys."""
        return cls(*zmq.curve_keypair(), *zmq.curve_keypair())


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a process.

    Attributes:
      path: its socket's file, for processes of its machine that see the folder.
      tcp: its address for all others, `tcp://host:port`; empty if the cluster is one machine.
      machine: its machine, as `machine_name` has it.
    """

    path: str
    tcp: str = ""
    machine: str = ""

    def plain(self) -> dict[str, str]:
        """The address as a map of strings, for a message."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Settings that every process of a cluster gets when it starts.

    Attributes:
      folder: a private folder for sockets, on the coordinator's machine.
      keys: the cluster's keys; None if it is one machine.
      machine: the coordinator's machine.
    """

    folder: str
    keys: Keys | None = None
    machine: str = field(default_factory=Folder.machine_name)

    def seen_here(self) -> bool:
        """True if this process can make sockets in the folder: one on a disk that machines share is not enough."""
        return self.machine == Folder.machine_name() and Path(self.folder).is_dir()


class Hub:
    """The called side: answers any number of links.

    Args:
      folder: a private folder for the socket's file.
      keys: the cluster's keys, with `host` the address under which other machines reach this one; without them only
        processes of this machine can call.
    """

    def __init__(self, folder: str, keys: Keys | None = None, host: str | None = None) -> None:
        self._context = zmq.Context(io_threads=1)
        self._auth: ThreadAuthenticator | None = None
        path = str(Path(folder) / uuid.uuid4().hex[:12])
        self._local = self._socket(zmq.ROUTER)
        self._local.bind(f"ipc://{path}")
        self._sockets = [self._local]
        tcp = ""
        if keys is not None and host is not None:
            tcp = self._listen(keys, host)
        self.endpoint: Endpoint = Endpoint(path, tcp, Folder.machine_name())
        # ZeroMQ's sockets belong to one thread, so that another thread ends a `receive` through a pair of sockets only.
        name = f"inproc://{uuid.uuid4().hex}"
        self._waking, self._ringing = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._waking.bind(name)
        self._ringing.connect(name)
        self._ring_lock = threading.Lock()
        self._poller = zmq.Poller()
        for socket in (*self._sockets, self._waking):
            self._poller.register(socket, zmq.POLLIN)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        _tune(socket)
        return socket

    def _listen(self, keys: Keys, host: str) -> str:
        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        self._auth.configure_curve_callback("*", credentials_provider=KeyCheck(keys.caller_public))
        remote = self._socket(zmq.ROUTER)
        remote.curve_server = True
        remote.curve_publickey, remote.curve_secretkey = keys.called_public, keys.called_secret
        port = remote.bind_to_random_port(f"tcp://{host}")
        self._sockets.append(remote)
        return f"tcp://{host}:{port}"

    def receive(self, timeout_s: float | None) -> list[tuple[Route, Frames]]:
        """All messages that have come: the route for the answer, and the frames. Waits for one, or for `wake`."""
        ready = dict(self._poller.poll(None if timeout_s is None else int(timeout_s * 1e3)))
        found: list[tuple[Route, Frames]] = []
        if self._waking in ready:
            _drain(self._waking)
        for socket in self._sockets:
            if socket in ready:
                found.extend(((socket, frames[0].bytes), frames[1:]) for frames in _all(socket))
        return found

    def send(self, route: Route, frames: Frames) -> None:
        """Answers; a caller that is gone is no error."""
        # ZeroMQ raises for an identity that is not connected any more only if that is asked for; else it drops the
        # message.
        socket, identity = route
        with contextlib.suppress(zmq.ZMQError):
            socket.send_multipart([identity, *frames], copy=False)

    def wake(self) -> None:
        """Ends a `receive` of another thread."""
        with self._ring_lock, contextlib.suppress(zmq.ZMQError):
            self._ringing.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Closes the sockets; what is unsent has a moment to leave."""
        if self._auth is not None:
            self._auth.stop()
        with self._ring_lock:
            for socket in (*self._sockets, self._waking, self._ringing):
                socket.close(_LINGER_MS)
        self._context.term()
        Path(self.endpoint.path).unlink(missing_ok=True)


class Link:
    """The calling side: one connection to a hub, for one thread at a time.

    Args:
      endpoint: the hub's.
      keys: the cluster's keys, for a hub on another machine.
      once: whether to give up when the connection ends, rather than to make it again.

    Attributes:
      local: whether the connection is within this machine. Any other may break, and be made again: what was on its way
        is lost then, and the hub knows this link by another route.
    """

    def __init__(self, endpoint: Endpoint, keys: Keys | None = None, *, once: bool = False) -> None:
        self.endpoint = endpoint
        self._context = zmq.Context(io_threads=1)
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        _tune(self.socket)
        self._ended = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED) if once else None
        # Machines may share the disk of the folder: its sockets lead nowhere from another one.
        here = bool(endpoint.path) and endpoint.machine == Folder.machine_name() and Path(endpoint.path).exists()
        self.local = here or not endpoint.tcp
        if self.local:
            self.socket.connect(f"ipc://{endpoint.path}")
            return
        if keys is not None:
            # The server's key is known from Ray, so that nobody else can answer in its place.
            self.socket.curve_serverkey = keys.called_public
            self.socket.curve_publickey, self.socket.curve_secretkey = keys.caller_public, keys.caller_secret
        self.socket.connect(endpoint.tcp)

    def send(self, frames: Frames) -> None:
        """Sends a message; it is kept while the connection is being made, and lost if the hub has refused the keys."""
        with contextlib.suppress(zmq.Again):  # blocking, it would wait for ever then
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def receive(self, timeout_s: float) -> Frames | None:
        """The frames of the next message, or None after `timeout_s` seconds, or when there will be none."""
        if self._ended is not None:
            # Whichever comes first: an answer, or the news that the other process is gone and will not answer.
            zmq.select([self.socket, self._ended], [], [], timeout_s)
            timeout_s = 0
        if not self.socket.poll(int(timeout_s * 1e3)):
            return None
        return self.socket.recv_multipart(copy=False)

    def close(self) -> None:
        """Closes the connection."""
        if self._ended is not None:
            self.socket.disable_monitor()
            self._ended.close(0)
        self.socket.close(_LINGER_MS)
        self._context.term()


class KeyCheck:
    """Admits the callers that hold the cluster's key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        """True if `key`, in Z85 as pyzmq gives it, is the known one."""
        return key == self._key


def end_idle_threads() -> None:
    """Ends the thread in which pyzmq frees what was sent without a copy, unless something is on its way yet."""
    left = deadline(2.0)
    while garbage.gc.refs and left():
        time.sleep(0.001)
    if not garbage.gc.refs:
        garbage.gc.stop()


def own_host() -> str:
    """The address under which Ray's other nodes know this one."""
    import ray

    return ray.util.get_node_ip_address()


def deadline(seconds: float) -> Callable[[], float]:
    """A function that tells how many seconds are left, at least 0."""
    end = time.monotonic() + seconds
    return lambda: max(0.0, end - time.monotonic())


def _tune(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.SNDHWM, 0)  # a full queue would block or drop; requests are bounded by who waits for them
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.SNDBUF, _BUFFER)
    socket.setsockopt(zmq.RCVBUF, _BUFFER)


def _all(socket: zmq.Socket[bytes]) -> Generator[list[Any]]:
    while True:
        try:
            yield socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return


def _drain(socket: zmq.Socket[bytes]) -> None:
    for _ in _all(socket):
        pass
