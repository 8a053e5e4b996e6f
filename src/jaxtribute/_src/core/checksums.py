"""Checksums of files: what was written, and what is there now; for checkpoints and for saves of parameter servers.

Every file of a checkpoint but its description is listed there with its size and the CRC-32 of its bytes. Neither Orbax,
TensorStore nor NumPy's archives have a checksum that tells two files that were swapped, or one of an earlier save, so
whole files are compared. They are read once more at a restore, before anything is changed; the arrays then come from
memory that the system has just read. A file that the system cannot read now is no damage: see `reading`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from jaxtribute._src.core.reading import exists, passing, patiently
from jaxtribute._src.regular_files import IrregularError, open_regular

_PIECE_BYTES = 1 << 20
_THREADS = 4
"""Files that are read at a time. A CRC goes at about 1 GB/s on one core, a disk of a data center at several."""

Mark = tuple[int, int]
"""The size of a file in bytes, and the CRC-32 of what it holds."""


def names(directory: Path) -> list[str]:
    """The files below a folder, by their paths from there with `/`, in order.

    Raises:
      OSError: a folder cannot be listed now.
    """
    names: list[str] = []

    def fail(error: OSError) -> None:
        if passing(error):  # by default such a folder would count as empty
            raise error

    for folder, _, files in os.walk(directory, onerror=fail):
        place = Path(folder).relative_to(directory)
        names += [(place / file).as_posix() for file in files]
    # Sorted, as a system lists files in any order.
    return sorted(names)


def checksum_of(path: Path) -> Mark:
    """Reads a file, and returns its size and checksum.

    Args:
      path: the file.
    """
    size = checksum = 0
    # One buffer for all pieces: whole files would take as much memory as the largest of them.
    buffer = memoryview(bytearray(_PIECE_BYTES))
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            checksum = zlib.crc32(buffer[:count], checksum)
            size += count
    return size, checksum


def marks(directory: Path, chosen: Collection[str]) -> dict[str, Mark]:
    """The marks of some files, by their names below `directory`."""
    return {name: patiently(lambda name=name: checksum_of(directory / name)) for name in chosen}


def damaged_files(directory: Path, written: Mapping[str, Mark], part: tuple[int, int] = (0, 1)) -> list[str]:
    """Compares files with what was written.

    Args:
      directory: where they are.
      written: their marks by name.
      part: where several processes look at one part each: the number of this one, and how many there are.

    Returns:
      One line for each file that is not as it was written: its name, and what is wrong.

    Raises:
      OSError: a file cannot be read now, and no other is known to be damaged.
    """
    # The largest first, so that no thread is left alone with one of them, and every part gets some.
    order = sorted(written, key=lambda name: (-written[name][0], name))[part[0] :: part[1]]
    unread: list[OSError | MemoryError] = []

    def problem(name: str) -> str:
        look = partial(_problem, directory / name, written[name])
        try:
            return look() if unread else patiently(look)  # a disk that does not answer is waited for once
        except (OSError, MemoryError) as error:
            unread.append(error)
            return ""

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="jaxtribute-verify") as pool:
        problems = list(pool.map(problem, order))
    damages = sorted(f"{name}: {problem}" for name, problem in zip(order, problems, strict=True) if problem)
    if unread and not damages:
        raise unread[0]
    return damages


def _problem(path: Path, written: Mark) -> str:
    """Says what is wrong with a file; empty if nothing is."""
    try:
        size = path.stat().st_size
        if size != written[0]:
            return f"{size} bytes instead of {written[0]}"
        return "" if checksum_of(path) == written else "other bytes than were written"
    except (FileNotFoundError, IrregularError) as error:
        return "missing" if isinstance(error, FileNotFoundError) else str(error)
    except OSError as error:
        if passing(error):
            raise
        return f"no file: {error.strerror or error}"


class Disk:
    """Files of a disk that may fail for a moment: reads, and what was written there."""

    patiently = staticmethod(patiently)
    passing = staticmethod(passing)
    exists = staticmethod(exists)
    checksum_of = staticmethod(checksum_of)
    damaged_files = staticmethod(damaged_files)
