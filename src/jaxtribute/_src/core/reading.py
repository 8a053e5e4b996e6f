"""Reading files of disks that fail for a moment: what cannot be read now is not what is damaged.

A file that is missing, or a folder or a pipe in its place, is not what was written. Any other error of the system (EIO,
ESTALE, no descriptor left, no permission, a network disk that does not answer) says nothing about what the file holds.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from jaxtribute._src.regular_files import IrregularError

_T = TypeVar("_T")

_PAUSES_S = (0.05, 0.15, 0.4, 0.9)
"""Seconds before each further trial."""
_OTHER_FILES = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG))
"""Errors that say what is there, and that it is not the file that was written."""
# TensorStore, which reads and writes arrays, raises ValueError for everything, and ends the text like this.
_CODE_IN_TEXT = re.compile(r"os_error_code='(\d+)'")


def error_number(error: BaseException | None) -> int | None:
    """The system's number of an error, also of one that other libraries have wrapped; None if there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        if isinstance(error, MemoryError):
            return errno.ENOMEM
        if isinstance(error, ValueError) and (code := _CODE_IN_TEXT.search(str(error))):
            return int(code[1])
        error = error.__cause__
    return None


def passing(error: BaseException) -> bool:
    """True if an error says nothing about what a file holds: it may be gone at the next trial."""
    number = error_number(error)
    if number is None:
        return isinstance(error, OSError)
    return number not in _OTHER_FILES and not isinstance(error, IrregularError)


def patiently(read: Callable[[], _T]) -> _T:
    """Calls a function that reads files, and again after a moment if the system cannot read them now.

    Raises:
      Exception: what the function raises: at once if trying again would not help, else what the last trial raised.
    """
    for pause in _PAUSES_S:
        try:
            return read()
        except (OSError, MemoryError, ValueError) as error:
            if not passing(error):
                raise
        time.sleep(pause)
    return read()


def exists(path: Path) -> bool:
    """True if there is something at a path; unlike `Path.exists`, raises if that cannot be said now.

    Raises:
      OSError: the system cannot look there now.
    """
    try:
        patiently(path.stat)
    except OSError as error:
        if passing(error):
            raise
        return False
    return True
