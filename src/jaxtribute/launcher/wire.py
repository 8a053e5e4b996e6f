"""Lines of JSON between the launchers of a job's machines. Nothing else is ever read from the network."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

LONGEST = 1 << 20
"""Bytes of a line; a longer one ends the connection."""

Message = dict[str, Any]


class Line:
    """One connection between two launchers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def own_host(self) -> str:
        """The address of this machine by which the other one is reached, hence by which it can reach this one."""
        return self._writer.get_extra_info("sockname")[0]

    @property
    def peer_host(self) -> str:
        """The address of the other machine."""
        return self._writer.get_extra_info("peername")[0]

    def send(self, message: Message) -> None:
        """Sends a message; if the other end is gone, that comes out when an answer is waited for."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> Message | None:
        """The next message; `None` at the end of the connection, or where something else than a launcher speaks."""
        try:
            line = await self._reader.readuntil(b"\n")
            message = json.loads(line)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return None
        return message if isinstance(message, dict) else None

    async def close(self) -> None:
        """Ends the connection once everything has been sent."""
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.drain(), 5.0)
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 5.0)


async def connect(host: str, port: int) -> Line:
    """Connects to another launcher.

    Raises:
        OSError: Nobody listens there.
    """
    return Line(*await asyncio.open_connection(host, port, limit=LONGEST))
