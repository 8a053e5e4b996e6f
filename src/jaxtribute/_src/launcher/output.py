"""Output of the ranks: read without waiting for it, and carried to the terminal and to a log file each."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pty
import re
import sys
import termios
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

_CHUNK = 1 << 16


class OutputReader:
    """The reading end of a process's output.

    Args:
      feed: gets what was read.
      terminal: whether the process is to see a terminal, as large as this process's, instead of a pipe.

    Attributes:
      child_end: the file descriptor for the process; close it once the process has started.
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
        # First: once it is closed, another file may get the same number.
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


KEPT_LINES = 400
"""Number of a rank's last lines that are kept for the summary of a failure."""
_TRACEBACK = b"Traceback (most recent call last):"
_NOISE = re.compile(rb"(?m)^(\[Gloo\] Rank \d+ is connected|W\d+ .*Using experimental recoverable task feature).*\n")
"""Lines that the collectives and the coordination service of JAX print at every start."""


class RankOutput:
    """The output of one rank, cut into lines.

    Args:
      prefix: what stands before each line on the terminal; `None` passes everything on as it comes.
      shown: whether it goes to the terminal at all.
      log: a file that all of it goes to, lines of JAX's runtime that tell a user nothing too.
    """

    def __init__(self, prefix: bytes | None, *, shown: bool, log: IO[bytes] | None) -> None:
        self._prefix, self.shown, self._log = prefix, shown, log
        self._lines: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Takes what was read."""
        if self._log is not None:
            self._log.write(data)
            # For whoever follows the file, and for what is left of a launcher that is killed.
            self._log.flush()
        data = _NOISE.sub(b"", data)
        if self._prefix is None and self.shown:
            write(data)
        # Whole lines alone: ranks that write at once would else be mixed within a line.
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._end(line)

    def close(self) -> None:
        """Takes a last line without an end as a line, and closes the file."""
        if self._rest:
            self._end(self._rest)
            self._rest = b""
        if self._log is not None:
            self._log.close()

    def traceback(self) -> str:
        """The last traceback among the lines that are kept; empty if there is none."""
        lines = list(self._lines)
        starts = [index for index, line in enumerate(lines) if line.startswith(_TRACEBACK)]
        if not starts:
            return ""
        # An exception raised while another was handled: the first one is where it began.
        first = last = starts[-1]
        for index in reversed(starts[:-1]):
            if not _joined(lines[index:last]):
                break
            first = last = index
        # The frames are indented; the line with the error, which ends the traceback, is not.
        end = starts[-1] + 1
        while end < len(lines) and lines[end].startswith(b" "):
            end += 1
        return b"\n".join(lines[first : end + 1]).decode(errors="replace")

    def last_line(self) -> str:
        """The last line that is not empty."""
        return next((line.decode(errors="replace") for line in reversed(self._lines) if line.strip()), "")

    def _end(self, line: bytes) -> None:
        # Of a line that was drawn over and over, the last state.
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
        self._lines.append(line)
        if self._prefix is not None and self.shown:
            write(self._prefix + line + b"\n")


def _joined(lines: list[bytes]) -> bool:
    return any(line.startswith((b"During handling of the above", b"The above exception was")) for line in lines)


def open_log(directory: Path | None, rank: int, restart: int) -> IO[bytes] | None:
    """The log file of a rank; a restart writes on, below a line that says so."""
    if directory is None:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    log = (directory / f"rank-{rank}.log").open("ab" if restart else "wb")
    if restart:
        log.write(f"\n--- restart {restart}\n".encode())
    return log


def write(data: bytes) -> None:
    """Writes to the terminal; a reader that has gone away is no reason to end the job."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def say(text: str) -> None:
    """A line of the launcher's own."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"jaxtribute launch: {text}\n")
        sys.stderr.flush()
