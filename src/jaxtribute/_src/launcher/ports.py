"""Ports that nobody else gets between now and the moment a process of the job listens on them."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from types import TracebackType
from typing import Self

LOOPBACK = "127.0.0.1"


class ReservedPorts:
    """Ports chosen by the kernel and kept until `close()`, though a process of this user may listen on them meanwhile.

    Each is bound and does not listen, with `SO_REUSEPORT`: JAX's coordination service, which sets it too, can listen
    there, while the kernel gives the port to nobody who asks for a free one.

    Args:
        count: How many.
        host: The address of this machine that they are reserved on.
    """

    def __init__(self, count: int, host: str = LOOPBACK) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket(family)) for _ in range(count)]
            for one in sockets:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                one.bind((host, 0))
            self.numbers: tuple[int, ...] = tuple(one.getsockname()[1] for one in sockets)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Gives the ports back; again is harmless."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
