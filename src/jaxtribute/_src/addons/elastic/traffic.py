"""`Traffic`: the data of steps between islands, sent and received by the thread that waits for it.

A thread for each connection would have to be woken by the system, take Python's lock, and wake the thread that waits:
longer than it takes to send what is small. So the one that waits looks for itself, for a moment without sleep, and
sends while it receives: two islands that send much to each other at once never wait for each other.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from jaxtribute._src.addons.elastic.membership import Island
from jaxtribute._src.addons.elastic.packing import empty

Head = tuple[int, int, int]
"""Three numbers before each message: of data the view, the step and the place in the step."""
HEAD = struct.Struct("!qqqq")
"""A head, and the number of bytes that follow it."""
LONGEST = 1 << 40
RETRY_S = 0.05
_SPIN_S = 60e-6
"""Seconds of looking without sleep: about what it takes to be woken."""
_PAUSE = 63
"""Waits between two looks that are in vain."""
_CHUNK = 1 << 18
"""Bytes that are received at once, before the others' turn."""
_FRAMES = 64
"""Arrays that are sent in one call; the system takes at most 1024."""
_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Incoming:
    """A connection through which an island sends its data, and what has come of a message."""

    def __init__(self, island: Island, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.island, self.connection = island, connection
        self._first = memoryview(bytearray(HEAD.size))
        self._head: Head | None = None
        self._buffer, self._size = self._first, 0

    def receive(self, take: Callable[[Island, Head, memoryview], object]) -> bool:
        """Takes what has come, and returns True if that was anything.

        Raises:
          OSError: the connection has ended.
        """
        taken = 0
        while taken < _CHUNK:
            try:
                count = self.connection.recv_into(self._buffer[self._size :])
            except _AGAIN:
                break
            if not count:
                raise ConnectionError("the other end has gone")
            taken += count
            self._size += count
            if self._size == len(self._buffer):
                self._turn(take)
        return bool(taken)

    def _turn(self, take: Callable[[Island, Head, memoryview], object]) -> None:
        """Goes on to what follows a head, or to the next head."""
        if self._head is None:
            *head, size = HEAD.unpack(self._first)
            if not 0 <= size < LONGEST:
                raise ConnectionError(f"the other end announces {size} bytes")
            first, second, third = head
            self._head, self._buffer, self._size = (first, second, third), memoryview(empty(size)), 0
            if size:
                return
        take(self.island, self._head, self._buffer)
        self._head, self._buffer, self._size = None, self._first, 0


class _Outgoing:
    """Messages that are to be sent to an island. What was sent in part is sent again if the connection breaks."""

    def __init__(self, connect: Callable[[], socket.socket | None]) -> None:
        self._connect = connect
        self.connection: socket.socket | None = None
        self.messages: deque[Sequence[memoryview]] = deque()
        self._left: list[memoryview] = []
        """The rest of the first message; empty if nothing of it was sent."""
        self._tried_at = -RETRY_S

    def connected(self) -> bool:
        """True if there is a connection; makes one if it is time to try."""
        if self.connection is None and time.monotonic() - self._tried_at >= RETRY_S:
            self.connection = self._connect()
            self._tried_at = time.monotonic()
            if self.connection is not None:
                self.connection.setblocking(False)
        return self.connection is not None

    def send(self) -> bool:
        """Sends what can be sent at once; returns True if that was anything."""
        sent = False
        while self.messages and self.connected():
            assert self.connection is not None
            self._left = self._left or list(self.messages[0])
            try:
                if isinstance(self.connection, ssl.SSLSocket):
                    count = self.connection.send(self._left[0][:_CHUNK])
                else:
                    count = self.connection.sendmsg(self._left[:_FRAMES])
            except _AGAIN:
                break
            except (OSError, ValueError):
                self.drop()
                break
            sent = True
            while self._left and count >= len(self._left[0]):
                count -= len(self._left.pop(0))
            if count:
                self._left[0] = self._left[0][count:]
            if not self._left:
                self.messages.popleft()
        return sent

    def drop(self) -> None:
        """Ends the connection."""
        if self.connection is not None:
            self.connection.close()
        self.connection, self._left = None, []


class Traffic:
    """Data between this island and the others.

    Args:
      connect: makes a connection to an island, or returns None.
      take: called with each message, by the thread that waits.
      looks: True if the thread that waits may look for a moment without sleep: it keeps a core busy.
    """

    def __init__(
        self,
        connect: Callable[[int], socket.socket | None],
        take: Callable[[Island, Head, memoryview], object],
        looks: bool,
    ) -> None:
        self._connect, self._take, self._looks = connect, take, looks
        self._incoming: list[_Incoming] = []
        """Connections, of which an island may have two for a while: each is read to its end."""
        self._outgoing: dict[int, _Outgoing] = {}
        self._gone: set[int] = set()
        """Ranks whose process has gone: what leads there is dropped by the thread that uses it."""
        self._lock = threading.Lock()
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._rung = self._closed = False
        self._pause = self._paused = 0
        """Waits between two looks without sleep, more and more while nothing comes so soon; and those that were."""

    def add(self, island: Island, connection: socket.socket) -> None:
        """Takes a connection through which an island sends its data."""
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._incoming.append(_Incoming(island, connection))
        self.wake()

    def meets(self, rank: int) -> bool:
        """True if an island can be reached; makes the connection if it can."""
        return self._to(rank).connected()

    def comes_from(self, rank: int) -> bool:
        """True if an island has made its connection to this one."""
        return any(each.island.rank == rank for each in list(self._incoming))

    def _to(self, rank: int) -> _Outgoing:
        if rank not in self._outgoing:
            self._outgoing[rank] = _Outgoing(lambda: self._connect(rank))
        return self._outgoing[rank]

    def post(self, ranks: Sequence[int], head: Head, frames: Sequence[bytes | memoryview]) -> None:
        """Begins to send a message, to each of some islands."""
        views = [memoryview(frame).cast("B") for frame in frames if len(frame)]
        message = [memoryview(HEAD.pack(*head, sum(map(len, views)))), *views]
        self._forget_gone()
        for rank in ranks:
            outgoing = self._to(rank)
            outgoing.messages.append(message)
            outgoing.send()

    def has_sent(self, ranks: Sequence[int]) -> bool:
        """True if all messages to some islands were sent."""
        return not any(self._outgoing[rank].messages for rank in ranks)

    def keep(self, ranks: Sequence[int]) -> None:
        """Ends the connections to islands other than these, and forgets what is left to be sent to them."""
        # A machine that is gone without a word takes nothing more: what it is given when it is back must not go there.
        for rank in [rank for rank in self._outgoing if rank not in ranks]:
            self._outgoing.pop(rank).drop()

    def move(self, wait_s: float, *, looks: bool = True) -> None:
        """Sends and receives; waits if there is nothing to be sent or received, until `wake` or for `wait_s`.

        Args:
          wait_s: seconds.
          looks: False if another thread has use for the core meanwhile.
        """
        if self._moved():
            return
        if looks and self._looks and self._looked():
            return
        poll = select.poll()
        # Closed meanwhile, they have no number; what comes of it is seen when they are used.
        with contextlib.suppress(OSError, ValueError):
            poll.register(self._bell, select.POLLIN)
            for incoming in list(self._incoming):
                poll.register(incoming.connection, select.POLLIN)
            for outgoing in self._outgoing.values():
                if outgoing.messages and outgoing.connection is not None:
                    poll.register(outgoing.connection, select.POLLOUT)
        poll.poll(wait_s * 1e3)
        with contextlib.suppress(OSError):
            self._bell.recv(64)
        self._rung = False
        self._moved()

    def _looked(self) -> bool:
        """Looks for a moment without sleep, unless that has been in vain lately: others have use for the core then."""
        self._paused += 1
        if self._paused <= self._pause:
            return False
        end = time.perf_counter() + _SPIN_S
        self._pause, self._paused = min(2 * self._pause + 1, _PAUSE), 0
        while time.perf_counter() < end:
            if self._moved():
                self._pause = 0
                return True
        return False

    def _moved(self) -> bool:
        """Sends and receives what can be at once; returns True if that was anything."""
        self._forget_gone()
        moved = False
        for outgoing in self._outgoing.values():
            moved |= bool(outgoing.messages) and outgoing.send()
        for incoming in list(self._incoming):
            try:
                moved |= incoming.receive(self._take)
            except (OSError, ValueError):
                self._end(incoming)
        return moved

    def _end(self, incoming: _Incoming) -> None:
        with self._lock:
            if incoming in self._incoming:
                self._incoming.remove(incoming)
        incoming.connection.close()

    def wake(self) -> None:
        """Lets the thread that waits look again at what it waits for."""
        if not self._rung:
            self._rung = True
            with contextlib.suppress(OSError):
                self._ringer.send(b"!")

    def forget(self, rank: int) -> None:
        """Takes note that a process is gone: another may listen there soon."""
        self._gone.add(rank)

    def _forget_gone(self) -> None:
        while self._gone:
            rank = self._gone.pop()
            if rank in self._outgoing:
                self._outgoing[rank].drop()

    def close(self) -> None:
        """Ends all connections."""
        with self._lock:
            self._closed = True
            connections = [each.connection for each in [*self._outgoing.values(), *self._incoming]]
        for connection in [*connections, self._ringer, self._bell]:
            if connection is not None:
                # A thread that waits for it meanwhile wakes so.
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()


def may_look(islands: int) -> bool:
    """True if this machine has a core for each of so many islands."""
    return (os.cpu_count() or 1) >= islands
