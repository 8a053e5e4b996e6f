"""Data sources of the records of files, read by their number over all the files."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, SupportsInt, TypeAlias

import numpy as np

from jaxtribute._src.regular_files import open_regular
from jaxtribute.errors import ArgumentError

Places: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class FileRecords:
    """A part of data sources: finds records once, at the start, and reads each when it is asked for.

    Args:
      paths: the files, in order.
      find: says of a file where each of its records begins, and where each ends: two arrays of shape `(records,)`.
    """

    def __init__(self, paths: Sequence[str | PathLike[str]], find: Callable[[str], tuple[Places, Places]]) -> None:
        self.paths: list[str] = [fspath(path) for path in paths]
        self._places = [find(path) for path in self.paths]
        self._ends: list[int] = np.cumsum([len(begins) for begins, _ in self._places]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends else 0

    def _read(self, index: SupportsInt) -> bytes:
        """The record of that number."""
        position = int(index)
        # The first file that ends behind the record; files without records are passed over.
        file = bisect.bisect_right(self._ends, position)
        record = position - (self._ends[file - 1] if file else 0)
        begin, end = (int(places[record]) for places in self._places[file])
        # Opened each time: Grain reads in several threads, and sends sources to processes, if no open file can go.
        with os.fdopen(open_regular(self.paths[file], os.O_RDONLY), "rb") as stream:
            stream.seek(begin)
            return stream.read(end - begin)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(paths={self.paths!r})"


class TextLineSource(FileRecords):
    r"""The lines of text files, in order, with random access: `grain.MapDataset.source(TextLineSource(paths))`.

    Files are read once at the start, to find where lines begin; lines are read when asked for. A record is the
    line as `str`, without its end (`\n` or `\r\n`).

    Args:
      paths: a file, or several.
      encoding: of the files.

    Raises:
      ArgumentError: for no paths.

    Source: `tf.data.TextLineDataset`, with random access.
    """

    def __init__(self, paths: str | PathLike[str] | Sequence[str | PathLike[str]], *, encoding: str = "utf-8") -> None:
        listed = [paths] if isinstance(paths, (str, PathLike)) else list(paths)
        if not listed:
            raise ArgumentError(f"paths is {paths!r}. HINT: give at least one file.")
        super().__init__(listed, _lines)
        self.encoding = encoding

    def __getitem__(self, index: SupportsInt) -> str:
        return self._read(index).rstrip(b"\n").removesuffix(b"\r").decode(self.encoding)


def _lines(path: str) -> tuple[Places, Places]:
    """Positions where each line begins, and where the next one does."""
    size, found, offset = Path(path).stat().st_size, [0], 0
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as stream:
        # By blocks, since the file may not fit into memory.
        while block := stream.read(1 << 20):
            found += (np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + offset + 1).tolist()
            offset += len(block)
    # The last line may be without its end.
    if found[-1] != size:
        found.append(size)
    places = np.asarray(found, np.int64)
    return places[:-1], places[1:]
