"""Reading what a process prints, through a pipe or a terminal of its own, without waiting for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pty
import sys
import termios
from collections.abc import Callable

_CHUNK = 1 << 16


class Reader:
    """The reading end of a process's output.

    Args:
        feed: Gets what was read.
        terminal: Whether the process is to see a terminal, as large as this process's, instead of a pipe.

    Attributes:
        child_end: The file descriptor for the process; close it once the process has started.
    """

    def __init__(self, feed: Callable[[bytes], None], *, terminal: bool) -> None:
        self._feed = feed
        self._fd, self.child_end = pty.openpty() if terminal else os.pipe()
        if terminal:
            _raw(self.child_end)
            copy_size(self._fd)
        self.terminal = self._fd if terminal else None
        os.set_blocking(self._fd, False)
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    async def finish(self, patience_s: float) -> None:
        """Waits for the end of the output, though not for processes that keep it open longer than that."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), patience_s)
        if not self._ended.is_set():
            self._end()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # how a terminal says that nobody writes any more
                raise
            data = b""
        if data:
            self._feed(data)
        else:
            self._end()

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self.terminal = None
        self._ended.set()


def copy_size(terminal: int) -> None:
    """Gives a terminal the size of the one that this process prints to."""
    with contextlib.suppress(OSError, ValueError):
        size = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def _raw(terminal: int) -> None:
    # The real terminal makes "\r\n" of "\n"; twice would be once too often.
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
