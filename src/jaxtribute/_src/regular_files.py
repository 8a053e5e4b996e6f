"""Opening files that others may have put something else in the place of."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_MOST_OF_SECRET = 1 << 16
"""Bytes that are read of a secret that is longer."""
_PATIENCE_S = 10.0
"""Seconds to wait for the program that writes to a pipe."""
LARGEST = 1 << 30
"""Bytes of a file that this library reads in one piece."""


class IrregularError(OSError):
    """The error of a file that is none of those that this library writes: it has no end, or would fill the memory."""


def with_hint(error: OSError, hint: str) -> OSError:
    """The same error of a file, with what helps."""
    return type(error)(error.errno, f"{error.strerror or error}. HINT: {hint}", error.filename)


def open_regular(path: str | Path, flags: int, mode: int = 0o644) -> int:
    """Opens a file and returns its descriptor, which no program that is started inherits. Never waits.

    Args:
      path: the file.
      flags: as `os.open` takes them.
      mode: the rights of a file that is made.

    Raises:
      IrregularError: the file is no regular one: a named pipe or a device may have no end.
      OSError: the file cannot be opened.
    """
    # Without O_NONBLOCK the opening of a named pipe waits for somebody at its other end. Regular files ignore it.
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a named pipe that nobody reads
            raise _refusal(path, Path(path).stat().st_mode) from None
        raise
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise _refusal(path, kind)
    return descriptor


def read_regular(path: Path, most: int = -1) -> bytes:
    """The content of a regular file, or its first bytes.

    Raises:
      OSError: likewise.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read(most)


def read_small(path: str | os.PathLike[str], most: int = LARGEST) -> bytes:
    """The content of a regular file that is to be read in one piece.

    Raises:
      IrregularError: the file is no regular one, or has more bytes than `most`.
      OSError: it cannot be read.
    """
    with os.fdopen(open_regular(Path(path), os.O_RDONLY), "rb") as file:
        # Its size first, as what is read fills the memory; files of /proc say that they are empty.
        content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise IrregularError(errno.EFBIG, f"it has more than {most:,} bytes, and is none of this library", str(path))
    return content


def text_of(path: str | os.PathLike[str]) -> str:
    """The content of a small file; empty if there is none, or it cannot be read."""
    try:
        return read_small(path).decode()
    except (OSError, ValueError):
        return ""


def read_secret(path: Path) -> bytes:
    """The content of a small file, which may be a pipe that another program writes to, as `<(...)` of a shell is.

    Raises:
      OSError: the file cannot be read, or the program has not ended in time.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    found, end = b"", time.monotonic() + _PATIENCE_S
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISFIFO(kind):
            raise _refusal(path, kind)
        while len(found) < _MOST_OF_SECRET:
            if not waiting.poll(1000 * max(0.0, end - time.monotonic())):
                raise TimeoutError(errno.ETIMEDOUT, f"nothing came for {_PATIENCE_S:g} s", str(path))
            data = os.read(descriptor, _MOST_OF_SECRET)
            if not data:
                break
            found += data
        return found
    finally:
        os.close(descriptor)


def known_to_all(path: Path) -> str | None:
    """Says that every user of this machine can read a file of a secret; None if that is not so."""
    if path.is_file() and path.stat().st_mode & stat.S_IROTH:
        return f"{path} can be read by every user of this machine. HINT: chmod 600 {path}."
    return None


def _refusal(path: str | Path, mode: int) -> IrregularError:
    what = _KINDS.get(stat.S_IFMT(mode), "something else")
    return IrregularError(errno.EINVAL, f"it is {what}, and no regular file", str(path))
