"""Records of files by number, over all the files."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Places: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class FileRecords:
    """A part of data sources: finds records once, at the start, and reads each when it is asked for.

    Args:
      paths: the files, in order.
      find: says of a file where each of its records begins, and where each ends: two arrays of shape `(records,)`.
    """

    def __init__(self, paths: Sequence[str | PathLike[str]], find: Callable[[str], tuple[Places, Places]]) -> None:
        self.paths = [fspath(path) for path in paths]
        self._places = [find(path) for path in self.paths]
        self._ends: list[int] = np.cumsum([len(begins) for begins, _ in self._places]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends else 0

    def _read(self, index: Any) -> bytes:
        """The record of that number."""
        position = int(index)
        file = bisect.bisect_right(self._ends, position)
        record = position - (self._ends[file - 1] if file else 0)
        begin, end = (int(places[record]) for places in self._places[file])
        with Path(self.paths[file]).open("rb") as stream:
            stream.seek(begin)
            return stream.read(end - begin)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(paths={self.paths!r})"
