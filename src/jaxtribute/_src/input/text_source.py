"""Lines of text files as a Grain data source."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxtribute._src.input.file_records import FileRecords, Places
from jaxtribute.errors import ArgumentError


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

    def __getitem__(self, index: Any) -> str:
        return self._read(index).rstrip(b"\n").removesuffix(b"\r").decode(self.encoding)


def _lines(path: str) -> tuple[Places, Places]:
    """Positions where each line begins, and where the next one does."""
    size, found, offset = Path(path).stat().st_size, [0], 0
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            found += (np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + offset + 1).tolist()
            offset += len(block)
    if found[-1] != size:
        found.append(size)
    places = np.asarray(found, np.int64)
    return places[:-1], places[1:]
