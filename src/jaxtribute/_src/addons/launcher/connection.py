"""Lines of JSON between the launchers of a job's machines. Nothing else is ever read from the network.

Launchers that share a key begin by telling each other a random number. From then on a seal stands before each line: the
HMAC, under the key, of the two numbers, of who speaks, of the line's place among those said, and of the line.
Who does not know the key can say nothing that is heard, nor repeat, leave out or reorder what was said.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
from typing import Any, Final

from jaxtribute.errors import ClusterError

LONGEST = 1 << 20
"""Bytes of a line; a longer one ends the connection."""

Message = dict[str, Any]

_DIGEST = "sha256"
_SEAL = 64
"""Letters of a seal."""
_SALT = 32
_LOST_S: Final = 30
"""Seconds after which a machine that does not answer the network's own questions is gone."""


class Line:
    """One connection between two launchers.

    Args:
      reader: what comes.
      writer: what goes.
      key: the secret that both know; None for lines without seals.
      calls: True at the end that has called the other.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        key: bytes | None = None,
        *,
        calls: bool = False,
    ) -> None:
        self._reader, self._writer, self._key = reader, writer, key
        self._sides = (b"caller", b"called") if calls else (b"called", b"caller")
        self._own_salt = secrets.token_hex(_SALT // 2).encode()
        self._salts = b""
        self._said = self._heard = 0
        self.silent = False
        """True once the connection has ended before anything came."""
        if key is not None:
            writer.write(self._own_salt + b"\n")
        _notice_loss(writer.get_extra_info("socket"))

    @property
    def heard(self) -> int:
        """Number of messages that have come."""
        return self._heard

    async def greet(self) -> None:
        """Hears the other's random number; to be awaited before anything is sent by the end that calls.

        Raises:
          OSError: the other end has gone.
          ValueError: it speaks without a key.
        """
        if self._key is None or self._salts:
            return
        try:
            other = (await self._reader.readuntil(b"\n"))[:-1]
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionError("the other end has gone") from error
        if len(other) != _SALT:
            raise ValueError("it speaks without a key")
        self._salts = self._own_salt + other if self._sides[0] == b"caller" else other + self._own_salt

    def _seal(self, side: bytes, place: int, line: bytes) -> bytes:
        assert self._key is not None
        return hmac.new(self._key, b"%s %s %d " % (self._salts, side, place) + line, _DIGEST).hexdigest().encode()

    @property
    def own_host(self) -> str:
        """The address of this machine by which the other one is reached, hence by which it can reach this one."""
        return self._writer.get_extra_info("sockname")[0]

    @property
    def peer_host(self) -> str:
        """The address of the other machine."""
        known = self._writer.get_extra_info("peername")
        return known[0] if known else "somebody who has gone"

    def send(self, message: Message) -> None:
        """Sends a message; if the other end is gone, that comes out when an answer is waited for."""
        # Without the other's number nothing can be sealed: it has not spoken, so it hears nothing either.
        if self._writer.is_closing() or (self._key is not None and not self._salts):
            return
        line = json.dumps(message).encode()
        if self._key is not None:
            line = self._seal(self._sides[0], self._said, line) + line
        self._said += 1
        self._writer.write(line + b"\n")

    async def receive(self) -> Message | None:
        """The next message; `None` at the end of the connection, or where something else than a launcher speaks."""
        try:
            await self.greet()
            line = (await self._reader.readuntil(b"\n"))[:-1]
            if self._key is not None:
                seal, line = line[:_SEAL], line[_SEAL:]
                # In a time that does not tell how many letters were right.
                if not hmac.compare_digest(seal, self._seal(self._sides[1], self._heard, line)):
                    return None
            message = json.loads(line)
        # Brackets within brackets without end are a RecursionError.
        except (OSError, ValueError, RecursionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            partly = isinstance(error, asyncio.IncompleteReadError) and error.partial
            self.silent = isinstance(error, (OSError, EOFError)) and not partly and not self._heard and not self._salts
            return None
        if not isinstance(message, dict):
            return None
        # Counted by both sides alike, as the number is a part of the next seal.
        self._heard += 1
        return message

    async def close(self) -> None:
        """Ends the connection once everything has been sent."""
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.drain(), 5.0)
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 5.0)


async def connect(host: str, port: int, key: bytes | None = None) -> Line:
    """Connects to another launcher.

    Raises:
      OSError: nobody listens there, or the one who does says nothing.
      ClusterError: a key is needed, and the other launcher has none.
    """
    line = Line(*await asyncio.open_connection(host, port, limit=LONGEST), key, calls=True)
    try:
        await asyncio.wait_for(line.greet(), _LOST_S)
    except OSError:
        await line.close()
        raise
    except ValueError as error:
        await line.close()
        raise ClusterError(
            f"the launcher at {host}:{port} has no key: {error}. HINT: give the same --key on all machines."
        ) from error
    return line


def _notice_loss(connection: socket.socket | None) -> None:
    """Ends a connection whose other machine has gone without a word, where the system can."""
    # An idle connection is asked after; one with something unsent has a deadline of its own.
    settings = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 1000 * _LOST_S}
    if connection is None:
        return
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in settings.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
