"""Standard streams of a command, which may be closed, full, or read by somebody who has gone."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from jaxtribute.typing import Foreign


_LOST, _GONE = 1, 128 + signal.SIGPIPE
"""Exit statuses if standard output cannot be written, and if its reader has gone."""


class _LostError(Exception):
    """Standard output cannot be written."""


class _Output(FileIO):
    """A file whose first error is a `_LostError`; what is written later is dropped."""

    _lost = False

    def write(self, data: Foreign) -> int:
        """Writes what it can, and returns how much that was."""
        if self._lost:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self._lost = True
            raise _LostError(error) from error


class _Errors(FileIO):
    """A file whose errors have nobody who could be told: what it does not take is dropped."""

    def write(self, data: Foreign) -> int:
        """Writes what it can, and says that this was all."""
        with suppress(OSError):
            super().write(data)
        return len(data)


@contextmanager
def standard_streams() -> Generator[None]:
    """Ends the process with one line and an exit status if its output cannot be written.

    Descriptors that are closed get files that hold nothing, and cannot be written: others that are opened would else
    get their numbers, and whatever prints would print into those.
    """
    _fill_gaps()
    sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Errors(2, "w", closefd=False), sys.stderr, lines=True)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except _LostError as error:
        cause = error.args[0]
        # Whoever has read enough, such as `head`, wants to hear of nothing.
        if cause.errno == errno.EPIPE:
            sys.exit(_GONE)
        sys.stderr.write(f"jaxtribute: standard output cannot be written: {cause.strerror}. HINT: send it elsewhere.\n")
        sys.exit(_LOST)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _fill_gaps() -> None:
    while True:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        if descriptor > 2:
            os.close(descriptor)
            return
        os.set_inheritable(descriptor, True)


def _text(raw: FileIO, before: TextIO | None, *, lines: bool = False) -> TextIOWrapper:
    """Text as Python would write it to that file."""
    encoding, errors = ("utf-8", "replace") if before is None else (before.encoding, before.errors)
    lines = lines or raw.isatty() or bool(getattr(before, "line_buffering", False))
    return TextIOWrapper(BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=lines)
