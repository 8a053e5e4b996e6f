"""Output of a job, carried to its readers by threads, so that a reader who stalls holds up nothing but his own lines.

Between the ranks and a reader lies a buffer of bounded size. If it is full, a rank that prints more waits a moment, so
that a reader who takes 2 MB a second (`_BATCH` in `ROOM_S`) gets everything. If no room comes, the reader has stalled:
from then on the oldest bytes are left out, and a line in their place says how many.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator

MOST = 8 << 20
"""Bytes that wait for a reader at most."""
ROOM_S = 0.5
"""Seconds without room after which a reader has stalled."""
END_S, LONGEST_END_S = 2.0, 20.0
"""Seconds that a job which is over waits for a reader who takes nothing, and for one who takes little."""
_OUT, _ERR = 1, 2
_PIECE = 1 << 15
"""Bytes of a write: a reader who takes as many within `END_S` has not stalled."""
_BATCH = 1 << 20
"""Bytes of a write to a reader who took as many at once: each write costs a turn of the threads and processes."""
_AT_ONCE_S = 0.05
OWN = b"jaxtribute launch: "
"""Prefix of the launcher's own lines."""
_UNREAD = "as nobody read them in time. HINT: --log-dir keeps everything."
_LOOK_S = 0.005


class Sink:
    """A file that a thread writes to.

    Args:
      descriptor: the file's.
      lost: told the error after which the file can no longer be written; what comes then is dropped.

    Attributes:
      written: bytes that were taken until now.
      thread: it ends once everything is written after `close`, or nothing can be written any more.
    """

    def __init__(self, descriptor: int, lost: Callable[[OSError], None]) -> None:
        self._descriptor, self._lost = descriptor, lost
        widen(descriptor)
        self._piece = _PIECE
        self._pieces: deque[tuple[bytes | None, bytes]] = deque()
        self._held = self._left_out = self.written = 0
        self._stalled = self._closing = self._broken = False
        self._changed = threading.Condition()
        self._line: bytes | None = None
        """Prefix of a line of which a part is written."""
        self.thread = threading.Thread(target=self._run, name=f"write to {descriptor}", daemon=True)
        self.thread.start()

    @property
    def held(self) -> int:
        """Bytes that wait to be taken."""
        return self._held

    def put(self, prefix: bytes | None, data: bytes) -> None:
        """Adds bytes to those that are written.

        Args:
          prefix: stands before the first line, unless that goes on with one of the same prefix; `None` for bytes that
            are passed on as they come.
          data: whole lines, or a part of a line that is too long to wait for its end.
        """
        with self._changed:
            # Who is woken because another rank has waited in vain must not take that for room.
            if not self._changed.wait_for(lambda: self._stalled or self._fits(data), ROOM_S):
                self._stalled = True
            while self._pieces and not self._fits(data):
                dropped = len(self._pieces.popleft()[1])
                self._held -= dropped
                self._left_out += dropped
            if not self._broken:
                self._pieces.append((prefix, data))
                self._held += len(data)
                self._changed.notify_all()

    def close(self) -> None:
        """Lets the thread end once it has written everything."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _fits(self, data: bytes) -> bool:
        return self._broken or self._held + len(data) <= MOST

    def _run(self) -> None:
        try:
            while batch := self._next():
                self._write(b"".join(self._joined(batch)))
                with self._changed:
                    self._held -= sum(len(data) for _, data in batch)
                    # Half a buffer of room ends a stall: with less, each few bytes that are read would begin another.
                    self._stalled = self._stalled and self._held > MOST // 2
                    self._changed.notify_all()
        except OSError as error:
            with self._changed:
                self._broken = True
                self._pieces.clear()
                self._held = 0
                self._changed.notify_all()
            self._lost(error)

    def _next(self) -> list[tuple[bytes | None, bytes]]:
        """Takes the pieces that are written next; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._closing)
            batch: list[tuple[bytes | None, bytes]] = []
            size = 0
            if self._left_out:
                note = f"{self._left_out:,} bytes of output were left out here, {_UNREAD}\n".encode()
                batch.append((OWN, note))
                self._held += len(note)
                self._left_out = 0
            while self._pieces and size < _PIECE:  # small ones together; joining large ones would only copy them
                piece = self._pieces.popleft()
                batch.append(piece)
                size += len(piece[1])
            return batch

    def _joined(self, batch: list[tuple[bytes | None, bytes]]) -> Generator[bytes]:
        """The pieces, and what stands between them."""
        for prefix, data in batch:
            if self._line is not None and self._line != prefix:
                yield b"\n"
                self._line = None
            if prefix is not None and self._line is None:
                yield prefix
            yield data
            self._line = None if data.endswith(b"\n") else prefix

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            start = time.monotonic()
            try:
                count = os.write(self._descriptor, view[: self._piece])
            except BlockingIOError:  # another process that has the file made it one that does not block
                _await_room(self._descriptor)
                continue
            view = view[count:]
            self.written += count
            # At the end `written` must tell soon that a reader still takes something.
            quick = time.monotonic() - start < _AT_ONCE_S and not self._closing
            self._piece = min(2 * self._piece, _BATCH) if quick else _PIECE


def widen(pipe: int) -> None:
    """Lets a pipe hold more, so that who writes and who reads take turns less often; nothing, if it is another file."""
    # Linux alone can, and no more for a user than 64 MiB in all.
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _BATCH)


def _await_room(descriptor: int) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    waiting.poll()


class Terminal:
    """Standard output and standard error of a launcher while a job runs; one sink for both if they are one file."""

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # as it is where the descriptor was closed
                stream.flush()
        self._errors = self._output = Sink(_ERR, lambda _: None)
        if not os.path.sameopenfile(_OUT, _ERR):
            self._output = Sink(_OUT, self._lost)
        self._hurry = asyncio.Event()

    def write(self, prefix: bytes | None, data: bytes) -> None:
        """Prints what a rank has said; see `Sink.put`."""
        self._output.put(prefix, data)

    def say(self, text: str) -> None:
        """Prints a line of the launcher's own."""
        self._errors.put(OWN, f"{text}\n".encode(errors="replace"))

    def hurry(self) -> None:
        """Ends the wait of `finish`."""
        self._hurry.set()

    async def finish(self) -> None:
        """Waits until everything is read, though not for readers who have stalled."""
        self._hurry.clear()
        end = time.monotonic() + LONGEST_END_S
        await self._drain(self._output, end)
        if self._output is not self._errors:
            if self._output.held:
                self.say(f"the last {self._output.held:,} bytes of output were left out, {_UNREAD}")
            await self._drain(self._errors, end)

    async def _drain(self, sink: Sink, end: float) -> None:
        sink.close()
        taken, since = sink.written, time.monotonic()
        while sink.thread.is_alive():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), _LOOK_S)
            now = time.monotonic()
            if sink.written != taken:
                taken, since = sink.written, now
            if self._hurry.is_set() or now > min(since + END_S, end):
                return

    def _lost(self, error: OSError) -> None:
        self.say(
            f"standard output cannot be written: {error.strerror}. The job goes on, and what its ranks print is not "
            "shown. HINT: --log-dir keeps it."
        )


class _Carrier:
    """Takes what a terminal would print."""

    def __init__(self, write: Callable[[bytes | None, bytes], None], say: Callable[[str], None]) -> None:
        self.write, self.say = write, say


_terminal: Terminal | _Carrier | None = None


@contextlib.asynccontextmanager
async def open_terminal() -> AsyncGenerator[Terminal]:
    """Lets `write` and `say` wait for no reader while a job runs."""
    global _terminal
    _terminal = terminal = Terminal()
    try:
        yield terminal
    finally:
        await terminal.finish()
        _terminal = None


@contextlib.contextmanager
def carried_to(write: Callable[[bytes | None, bytes], None], say: Callable[[str], None]) -> Generator[None]:
    """Gives what `write` and `say` would print to functions in their place."""
    global _terminal
    _terminal = _Carrier(write, say)
    try:
        yield
    finally:
        _terminal = None


def write(prefix: bytes | None, data: bytes) -> None:
    """Prints what a rank has said; see `Sink.put`. While no terminal is open it waits for its reader."""
    if _terminal is not None:
        _terminal.write(prefix, data)
        return
    view = memoryview((prefix or b"") + data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(_OUT, view) :]


def say(text: str) -> None:
    """Prints a line of the launcher's own, and waits a moment for its reader if no job runs."""
    if _terminal is not None:
        _terminal.say(text)
        return
    try:
        sink = Sink(sys.stderr.fileno(), lambda _: None)
    except (OSError, ValueError):  # of a notebook or a test: no file stands behind it
        sys.stderr.write(f"{OWN.decode()}{text}\n")
        return
    sink.put(OWN, f"{text}\n".encode(errors="replace"))
    sink.close()
    sink.thread.join(END_S)
