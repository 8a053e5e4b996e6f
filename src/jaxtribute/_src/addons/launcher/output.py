"""Output of the ranks: read by a thread for each, kept in a log file, cut into lines and handed on to the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pty
import re
import select
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from jaxtribute._src.addons.launcher.terminal import say, widen, write
from jaxtribute._src.addons.launcher.tracebacks import last_traceback, last_word
from jaxtribute._src.regular_files import open_regular

_CHUNK = 1 << 19
_SHOW_S = 0.5
"""Seconds after which a line that has not ended is shown as far as it is there: a prompt, a progress bar."""
_LONGEST_DRAIN_S = 20.0


class OutputReader:
    """The reading end of a process's output. A thread waits for it, and for the disk that it is written to.

    Args:
      feed: gets what was read, in that thread; nothing (`b""`) once what it has got of a line is to be shown.
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
        else:
            widen(self._fd)
        self.terminal = self._fd if terminal else None
        self._taken = 0
        self._given_up = False
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, args=(loop,), name="read a rank's output", daemon=True).start()

    async def finish(self, patience_s: float) -> None:
        """Waits for the end of the output, though not for processes that keep it open and are silent so long."""
        end = time.monotonic() + _LONGEST_DRAIN_S
        while not self._ended.is_set():
            taken = self._taken
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), patience_s)
            if self._taken == taken or time.monotonic() > end:
                break
        # The thread ends when those processes do, and says nothing more.
        self._given_up = not self._ended.is_set()
        self.terminal = None

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        show_at: float | None = None
        try:
            while True:
                if show_at is not None and not self._comes_before(show_at):
                    self._hand_on(b"")
                    show_at = None
                if not (data := self._read()):
                    break
                self._hand_on(data)
                self._taken += len(data)
                if data.endswith(b"\n"):
                    show_at = None
                elif show_at is None:
                    show_at = time.monotonic() + _SHOW_S
        finally:
            try:
                loop.call_soon_threadsafe(self._end)
            except RuntimeError:  # the loop has ended before
                os.close(self._fd)

    def _hand_on(self, data: bytes) -> None:
        if not self._given_up:
            self._feed(data)

    def _comes_before(self, end: float) -> bool:
        """Waits for more to read; False if nothing came in time, or the time is over."""
        left = end - time.monotonic()
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        return left > 0 and bool(waiting.poll(1000 * left))

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _CHUNK)
        except OSError as error:
            if error.errno != errno.EIO:  # how a terminal says that nobody writes any more
                raise
            return b""

    def _end(self) -> None:
        # In the loop's thread, which may be about to ask for the terminal's size: the number is then another file's.
        self.terminal = None
        os.close(self._fd)
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
_KEPT_BYTES = 1 << 18
_LONGEST_LINE = 1 << 20
"""Bytes of a line that are waited for; what is longer is passed on in parts."""
_LAST_LETTERS = 2000
_GLOO = (b"[Gloo] Rank ", b" is connected to ", b" peer ranks. ", b"Expected number of connected peer ranks is : ")
"""The pieces of Gloo's line, around numbers. Threads that print theirs at once put the pieces of several into one."""
_NOISE = re.compile(
    rb"(?m)^(?:\[Gloo\] Rank \d+ is connected.*|(?=.*ank)(?:%s|[\d ])+"
    rb"|W\d+ .*Using experimental recoverable task feature.*)\n" % b"|".join(map(re.escape, _GLOO))
)
"""Lines that the collectives and the coordination service of JAX print at every start."""
_KEPT_NOISE = 40
_SIGNS = (_GLOO[0], b" peer ranks", b"Using experimental recoverable task feature")
_CLOSE_S = 1.0


class RankOutput:
    """The output of one rank, cut into lines.

    Args:
      prefix: what stands before each line on the terminal; `None` passes everything on as it comes.
      shown: whether it goes to the terminal at all.
      log: a file that all of it goes to, lines of JAX's runtime that tell a user nothing too.
    """

    def __init__(self, prefix: bytes | None, *, shown: bool, log: FileIO | None) -> None:
        self._prefix, self.shown, self._log = prefix, shown, log
        self._deleted = False
        self._kept: deque[bytes] = deque()
        """The last whole lines, in pieces of one or many, each with its end."""
        self._kept_bytes = 0
        self._noise: deque[bytes] = deque(maxlen=_KEPT_NOISE)
        """The last lines of Gloo's that were left out: with whom a rank is connected."""
        self._rest: list[bytes] = []
        """The line that has not ended, in pieces: joined once, however many there are."""
        self._rest_bytes = 0
        self._begun = b""
        """The part of that line that is shown."""
        self._held: deque[tuple[bytes | None, bytes]] | None = None
        """Output kept from the terminal until it is known whether it tells anything; None if nothing is."""
        self._gate = threading.Lock()
        self._closed = False
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Keeps from the terminal what comes from now on, though not from the log file, until `release`."""
        with self._gate:
            if self._held is None:
                self._held = deque(maxlen=KEPT_LINES)

    def release(self, *, dropped: bool = False) -> None:
        """Shows what was kept from the terminal, unless it is dropped, and whatever comes after it."""
        # What comes meanwhile waits at the gate, so that it is shown after this.
        with self._gate:
            held, self._held = self._held, None
            if not dropped:
                for prefix, data in held or ():
                    write(prefix, data)

    def feed(self, data: bytes) -> None:
        """Takes what was read; of nothing, shows the line that has not ended as far as it is there."""
        with self._lock:
            if self._closed:
                return
            if not data:
                self._begin_line()
                return
            self._write_log(data)
            if self._prefix is None and self.shown:
                self._show(None, _quiet(data))
            if len(data) > _KEPT_BYTES and (self._prefix is None or not self.shown):
                data = data[-_KEPT_BYTES:]  # nobody sees more of it
                self._rest, self._rest_bytes = [], 0
            end = data.rfind(b"\n") + 1
            if end:
                # Joining a single piece copies nothing; all of a piece is the piece itself.
                self._end_lines(b"".join([*self._rest, data if end == len(data) else memoryview(data)[:end]]))
            if end < len(data):
                self._add(data[end:])

    def close(self) -> None:
        """Takes a last line without an end as a line, and closes the file."""
        # Whoever feeds it may be waiting for a disk that does not answer, and would be waited for in vain.
        if not self._lock.acquire(timeout=_CLOSE_S):
            return
        try:
            if self._rest:
                self._end_lines(b"".join([*self._rest, b"\n"]))
            if self._log is not None:
                self._log.close()
            self._closed = True
        finally:
            self._lock.release()

    def lines(self) -> list[bytes]:
        """The last lines that are kept."""
        if not self._kept:
            return []
        return b"".join(list(self._kept)).removesuffix(b"\n").split(b"\n")[-KEPT_LINES:]

    def traceback(self) -> str:
        """The last traceback among the lines that are kept; empty if there is none."""
        return last_traceback(self.lines())

    def last_line(self) -> str:
        """The last line that is neither empty nor of a warning, or its beginning."""
        return last_word(self.lines())[:_LAST_LETTERS].decode(errors="replace")

    def noise(self) -> str:
        """The lines of Gloo's that were left out, which tell whom a rank reached that has failed."""
        return b"".join(self._noise).decode(errors="replace").rstrip()

    def _show(self, prefix: bytes | None, data: bytes) -> None:
        with self._gate:
            if self._held is not None:
                self._held.append((prefix, data))
                return
        # Without the gate: a reader who is slow must hold up nobody who wants to hold the output.
        write(prefix, data)

    def _write_log(self, data: bytes) -> None:
        # At once, for whoever follows the file, and for what is left of a launcher that is killed.
        try:
            while data and self._log is not None:
                data = data[self._log.write(data) :]
            if self._log is not None and not self._deleted and not os.fstat(self._log.fileno()).st_nlink:
                self._deleted = True
                say(f"the log {self._log.name} was deleted; nobody can read what comes. HINT: rename logs instead.")
        except OSError as error:
            log, self._log = self._log, None
            if log is not None:
                with contextlib.suppress(OSError):
                    log.close()
                say(f"the log {log.name} ends here: {error.strerror}. The job goes on. HINT: make room on that disk.")

    def _add(self, rest: bytes) -> None:
        """Takes a piece of a line that has not ended."""
        drawn = rest.rstrip(b"\r")
        returned = bool(self._rest) and self._rest[-1].endswith(b"\r")
        # Of a line that is drawn over and over only the last state is kept, or hours of it would be.
        if drawn and (returned or b"\r" in drawn):
            self._rest, self._rest_bytes = [], 0
            rest = rest[drawn.rfind(b"\r") + 1 :]
        elif not drawn:
            if returned:
                return
            rest = b"\r"
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        if self._rest_bytes > _LONGEST_LINE:
            self._pass_on(b"".join(self._rest))

    def _begin_line(self) -> None:
        """Shows what there is of the line that has not ended."""
        line = b"".join(self._rest)
        if line and self._prefix is not None and self.shown:
            self._show(self._prefix, self._going_on(line))
            self._rest, self._begun = [line], line

    def _going_on(self, line: bytes) -> bytes:
        """The part of a line that is not shown yet; all of it, in its place, if it was drawn anew."""
        prefix = self._prefix or b""
        if not line.startswith(self._begun):
            return b"\r" + prefix + line
        return line[len(self._begun) :]

    def _end_lines(self, lines: bytes) -> None:
        if b"\r" in lines:
            lines = lines.replace(b"\r\n", b"\n")
        if b"\r" in lines:
            lines = b"\n".join([_last_state(line) if b"\r" in line else line for line in lines.split(b"\n")])
        quiet = _quiet(lines)
        if len(quiet) < len(lines):
            self._noise.extend(match[0] for match in _NOISE.finditer(lines) if match[0].startswith(_SIGNS[0]))
        self._pass_on(quiet)

    def _pass_on(self, lines: bytes) -> None:
        """Keeps whole lines, or a part of a very long one, and shows them."""
        self._rest, self._rest_bytes = [], 0
        if not lines:
            return
        self._kept.append(lines[-_KEPT_BYTES:])
        self._kept_bytes += len(self._kept[-1])
        while self._kept_bytes - len(self._kept[0]) >= _KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft())
        if self._prefix is not None and self.shown:
            # The terminal puts the first line's prefix.
            text = lines.replace(b"\n", b"\n" + self._prefix)
            if shown := self._going_on(text.removesuffix(self._prefix) if lines.endswith(b"\n") else text):
                self._show(self._prefix, shown)
        self._begun = b""


def _quiet(data: bytes) -> bytes:
    """Whole lines without those that every start prints."""
    # Fewer searches for what is never there: one of the two stands in each sign's line.
    if (b"]" in data or b" ranks" in data) and any(sign in data for sign in _SIGNS):
        return _NOISE.sub(b"", data)
    return data


def _last_state(line: bytes) -> bytes:
    """Returns the last state of a line that was drawn over and over."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def open_log(directory: Path | None, rank: int, restart: int) -> FileIO | None:
    """The log file of a rank; a restart writes on, and another launch into the same folder, below a line that says so.

    Raises:
      OSError: it cannot be made, or something else than a file is in its place.
    """
    if directory is None:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    # Appending, so that whoever empties the file meanwhile finds what comes later at its beginning.
    log = FileIO(str(directory / f"rank-{rank}.log"), "ab", opener=_open_log)
    # A job that its scheduler starts again, with its number, has the same folder.
    if restart or os.fstat(log.fileno()).st_size:
        what = f"restart {restart}" if restart else f"start of {time.strftime('%Y-%m-%d %H:%M:%S')}"
        log.write(f"\n--- {what}\n".encode())
    return log


def _open_log(path: str, flags: int) -> int:
    return open_regular(path, flags, 0o666)
