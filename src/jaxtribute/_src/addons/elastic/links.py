"""Connections between islands: sockets, one a use, so that nothing small waits behind what is large.

The data of steps are `Traffic`, and read by the thread that waits for them; all else by a thread for each connection.

Whoever has something to say connects; whoever listens only reads. So no two threads ever use one connection, which TLS
would not allow. A process that ends closes its connections at once, and nobody listens at its address any more, or a
later process of its name does, which greets all: both together prove that it is dead. A connection that merely breaks
proves nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from enum import IntEnum

from jaxtribute._src.addons.elastic.membership import Island
from jaxtribute._src.addons.elastic.traffic import HEAD, LONGEST, RETRY_S, Head, Traffic, may_look
from jaxtribute._src.addons.messaging.certificates import FILES, problem_of
from jaxtribute.errors import ArgumentError, DeadlineError
from jaxtribute.extending import Address

_GREETING = struct.Struct("!8sIIB")
_MAGIC = b"jdisland"
_PIECE = 1 << 18
"""Bytes that are sent in one call."""


class Lane(IntEnum):
    """The use of a connection."""

    CONTROL = 0
    DATA = 1
    JOURNAL = 2
    """Between a newcomer and the others."""


Heard = Callable[[Island, Lane, Head, bytearray], None]
Received = Callable[[Island, Head, memoryview], None]
Lost = Callable[[Island, bool], None]


class Tls:
    """The job's certificates, for islands that other machines can reach."""

    def __init__(self, files: Sequence[str]) -> None:
        certificate, key, authority = files
        self.calls = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
        # The job's authority signs certificates of the job's processes and nothing else.
        self.calls.check_hostname = False
        self.called = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        self.called.verify_mode = ssl.CERT_REQUIRED
        for context in (self.calls, self.called):
            context.load_cert_chain(certificate, key)

    @classmethod
    def needed_for(cls, addresses: Sequence[Address]) -> Tls | None:
        """The certificates that the environment names, if any of the addresses can be reached from elsewhere.

        Raises:
          ArgumentError: there are none.
        """
        open_ones = [address for address in addresses if not address.is_loopback()]
        if not open_ones:
            return None
        files = [os.environ.get(name, "") for name in FILES]
        if not all(files):
            raise ArgumentError(
                f"the island at {open_ones[0]} can be reached from other machines, and the job has no certificates "
                f"({', '.join(FILES)}). HINT: start it with `jaxtribute launch`, which makes them, or use "
                "addresses on 127.0.0.1."
            )
        problem = problem_of(os.environ)
        if problem is not None:
            raise ArgumentError(f"the island at {open_ones[0]} cannot encrypt: {problem[0]}. HINT: {problem[1]}")
        return cls(files)


class Links:
    """This island's connections to all others.

    Args:
      me: this island.
      addresses: of all islands, by rank.
      heard: called with each message, in a thread for each connection.
      lost: called when a connection of another island has ended, with True if that proves that its process has.
      received: called with the data of steps, by the thread that waits for them.
    """

    def __init__(
        self, me: Island, addresses: Sequence[str], heard: Heard, lost: Lost, received: Received = lambda *_: None
    ) -> None:
        self._me, self._heard, self._lost = me, heard, lost
        self._addresses = [Address.parse(address) for address in addresses]
        self._tls = Tls.needed_for(self._addresses)
        self._outgoing: dict[tuple[int, Lane], socket.socket] = {}
        self._incoming: dict[tuple[Island, Lane], socket.socket] = {}
        self._newest = [0] * len(addresses)
        """The latest process of each island that has made a connection, by its number."""
        self._newest_lock = threading.Lock()
        self._locks = {(rank, lane): threading.Lock() for rank in range(len(addresses)) for lane in Lane}
        self._closed = False
        self.traffic = Traffic(lambda rank: self._connection(rank, Lane.DATA), received, may_look(len(addresses)))
        own = self._addresses[me.rank]
        family = socket.AF_INET6 if ":" in own.host else socket.AF_INET
        # The launcher keeps the port reserved, which nobody else can listen on then.
        reserved = os.environ.get("JAXTRIBUTE_LAUNCHER") == "1"
        self._listener = socket.create_server(
            (own.host, own.port), family=family, backlog=4 * len(addresses), reuse_port=reserved
        )

    @property
    def far(self) -> bool:
        """True if the islands' addresses are on several hosts."""
        return len({address.host for address in self._addresses}) > 1

    def begin(self) -> None:
        """Begins to take connections: from now on the functions are called."""
        _in_thread("islands: accepting", self._accept)

    def send(self, rank: int, lane: Lane, head: Head, parts: Sequence[bytes | memoryview], wait_s: float) -> bool:
        """Sends a message; False if nothing of it could be sent within `wait_s`, however long the whole takes."""
        lock = self._locks[rank, lane]
        end = time.monotonic() + wait_s
        if not lock.acquire(timeout=wait_s):
            return False
        try:
            connection = self._outgoing.get((rank, lane)) or self._connected(rank, lane)
            if connection is None:
                return False
            try:
                connection.settimeout(max(end - time.monotonic(), 0.001))
                size = sum(map(len, parts))
                connection.sendall(HEAD.pack(*head, size))
                for part in parts:
                    _send(connection, part, wait_s)
            except OSError:
                # What was sent in part cannot be taken back: the connection is of no more use.
                self._outgoing.pop((rank, lane), None)
                connection.close()
                return False
            return True
        finally:
            lock.release()

    def deliver(
        self,
        rank: int,
        lane: Lane,
        head: Head,
        parts: Sequence[bytes | memoryview],
        wait_s: float,
        wanted: Callable[[], bool],
    ) -> None:
        """Sends a message, again if it could not be sent, for as long as it is wanted, and `wait_s` at most."""
        end = time.monotonic() + wait_s
        while not self.send(rank, lane, head, parts, wait_s) and wanted() and time.monotonic() < end:
            time.sleep(RETRY_S)

    def await_all(self, timeout_s: float) -> None:
        """Waits until each island has been reached and has reached this one.

        Raises:
          DeadlineError: some have not; it names them.
        """
        end = time.monotonic() + timeout_s
        others = [rank for rank in range(len(self._addresses)) if rank != self._me.rank]
        while True:
            missing = [rank for rank in others if not self._meets(rank)]
            if not missing:
                return
            if time.monotonic() > end:
                names = ", ".join(f"island {rank} at {self._addresses[rank]}" for rank in missing)
                raise DeadlineError(
                    f"island {self._me.rank} has waited {timeout_s:g} s for {names}. HINT: start all of them, with "
                    "the same addresses, or give more time with timeout_s=."
                )
            time.sleep(RETRY_S)

    def greet(self) -> None:
        """Connects to all others: so they know at once that the earlier processes of this island's name have ended."""
        for rank in range(len(self._addresses)):
            if rank != self._me.rank:
                _in_thread("islands: greeting", lambda rank=rank: self._reaches(rank))

    def _reaches(self, rank: int) -> bool:
        key = rank, Lane.CONTROL
        with self._locks[key]:
            return self._outgoing.get(key) is not None or self._connected(*key) is not None

    def _meets(self, rank: int) -> bool:
        if not self._reaches(rank):
            return False
        incoming = {lane: island for island, lane in list(self._incoming) if island.rank == rank}
        # One that has ended meanwhile and was started again joins the others: it need not be waited for.
        if any(island.incarnation for island in incoming.values()):
            return True
        return Lane.CONTROL in incoming and self.traffic.meets(rank) and self.traffic.comes_from(rank)

    def _connected(self, rank: int, lane: Lane) -> socket.socket | None:
        connection = self._connection(rank, lane)
        if connection is None:
            return None
        self._outgoing[rank, lane] = connection
        if self._closed:  # meanwhile
            connection.close()
            return None
        return connection

    def _connection(self, rank: int, lane: Lane) -> socket.socket | None:
        """Connects to an island, or returns None."""
        if self._closed:
            return None
        address = self._addresses[rank]
        try:
            connection = socket.create_connection((address.host, address.port), timeout=1.0)
        except OSError:
            return None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if self._tls is not None:
                connection = self._tls.calls.wrap_socket(connection)
            connection.sendall(_GREETING.pack(_MAGIC, self._me.rank, self._me.incarnation, lane))
        except OSError:
            connection.close()
            return None
        return connection

    def refuses(self, rank: int) -> bool:
        """True if nobody listens at an island's address: its process has ended."""
        address = self._addresses[rank]
        try:
            socket.create_connection((address.host, address.port), timeout=1.0).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    def proves_dead(self, island: Island) -> bool:
        """True if an island's process has ended, and all that it has said has been heard."""
        # Its last words may be that this island was left out: whoever has slept must read them before it acts.
        if any(other == island for other, _ in list(self._incoming)):
            return False
        return self._newest[island.rank] > island.incarnation or self.refuses(island.rank)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            _in_thread("islands: reading", lambda connection=connection: self._read(connection))

    def _read(self, connection: socket.socket) -> None:
        """Reads what an island says, until its end; what is data is left to those who wait for it."""
        try:
            connection, island, lane = self._greeted(connection)
        except (OSError, ValueError):
            connection.close()
            return
        self._meet(island)
        if lane is Lane.DATA:
            self.traffic.add(island, connection)
            return
        with contextlib.closing(connection):
            self._incoming[island, lane] = connection
            with contextlib.suppress(OSError, ValueError):
                while True:
                    *head, size = HEAD.unpack(_exactly(connection, HEAD.size))
                    if not 0 <= size < LONGEST:
                        break
                    first, second, third = head
                    self._heard(island, lane, (first, second, third), _exactly(connection, size))
            if self._incoming.get((island, lane)) is connection:
                del self._incoming[island, lane]
        if not self._closed:
            with self._newest_lock:
                # Of another process, which may be there already, this end says nothing.
                if self._newest[island.rank] <= island.incarnation:
                    self._forget(island.rank)
            self._lost(island, self.proves_dead(island))

    def _greeted(self, connection: socket.socket) -> tuple[socket.socket, Island, Lane]:
        """Reads who has connected, and for what.

        Raises:
          OSError: it has gone, or has no certificate of the job.
          ValueError: it is not an island.
        """
        connection.settimeout(10.0)
        if self._tls is not None:
            connection = self._tls.called.wrap_socket(connection, server_side=True)
        try:
            magic, rank, incarnation, lane = _GREETING.unpack(_exactly(connection, _GREETING.size))
            if magic != _MAGIC or rank >= len(self._addresses):
                raise ValueError(f"{magic!r} of rank {rank}")
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection, Island(rank, incarnation), Lane(lane)
        except (OSError, ValueError):
            connection.close()
            raise

    def _meet(self, island: Island) -> None:
        """Drops what leads to an earlier process of an island: a machine that loses its power closes nothing."""
        with self._newest_lock:
            if island.incarnation > self._newest[island.rank]:
                self._newest[island.rank] = island.incarnation
                self._forget(island.rank)

    def _forget(self, rank: int) -> None:
        """Drops the connections to a process that is gone: another may listen there soon."""
        for lane in Lane:
            connection = self._outgoing.pop((rank, lane), None)
            if connection is not None:
                connection.close()
        self.traffic.forget(rank)

    def close(self) -> None:
        """Ends all connections; the others take this process for dead."""
        self._closed = True
        # A thread that waits in `accept` would go on to listen.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in [*self._outgoing.values(), *self._incoming.values()]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self.traffic.close()


def _send(connection: socket.socket, part: bytes | memoryview, wait_s: float) -> None:
    """Sends bytes, however many: over a slow cable they take as long as they take, as long as some arrive."""
    connection.settimeout(wait_s)
    view, sent = memoryview(part), 0
    while sent < len(view):
        sent += connection.send(view[sent : sent + _PIECE])


def _exactly(connection: socket.socket, size: int) -> bytearray:
    """The next `size` bytes.

    Raises:
      ConnectionError: the connection has ended.
    """
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = connection.recv_into(view[got:])
        if not count:
            raise ConnectionError("the other end has gone")
        got += count
    return data


def _in_thread(name: str, call: Callable[[], object]) -> None:
    threading.Thread(target=call, name=name, daemon=True).start()
