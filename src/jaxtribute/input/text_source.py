"""Lines of text files as a Grain data source."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from jaxtribute.errors import ArgumentError


class TextLineSource:
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
        self.paths = [fspath(path) for path in listed]
        self.encoding = encoding
        self._starts = [_line_starts(path) for path in self.paths]
        self._ends = np.cumsum([len(starts) - 1 for starts in self._starts]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: Any) -> str:
        position = int(index)
        file = bisect.bisect_right(self._ends, position)
        line = position - (self._ends[file - 1] if file else 0)
        start, stop = self._starts[file][line : line + 2]
        with Path(self.paths[file]).open("rb") as stream:
            stream.seek(int(start))
            return stream.read(int(stop - start)).rstrip(b"\n").removesuffix(b"\r").decode(self.encoding)

    def __repr__(self) -> str:
        return f"TextLineSource(paths={self.paths!r})"


def _line_starts(path: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where each line begins, and where the last one ends."""
    size, found, offset = Path(path).stat().st_size, [0], 0
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            found += (np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + offset + 1).tolist()
            offset += len(block)
    if found[-1] != size:
        found.append(size)
    return np.asarray(found, np.int64)
