"""Datasets of files: TFRecords and lines of text."""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import grain
import numpy as np

from jaxtribute.compat.tf.data.dataset import Dataset
from jaxtribute.compat.tf.data.pipelines import Indexed
from jaxtribute.errors import ArgumentError, InputError
from jaxtribute.input.text_source import TextLineSource

_HEADER, _FOOTER = 12, 4
"""Bytes before a record: its length and a checksum of that. After it: a checksum of the record."""


class TFRecordSource:
    """The records of uncompressed TFRecord files, in order, with random access. Checksums are not looked at.

    Files are read once at the start, to find where records begin.

    Args:
      paths: the files.

    Raises:
      InputError: a file that ends within a record.
    """

    def __init__(self, paths: Sequence[str | PathLike[str]]) -> None:
        self.paths = [fspath(path) for path in paths]
        self._places = [_places(path) for path in self.paths]
        self._ends = list(itertools.accumulate(len(places) for places in self._places))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        position = int(index)
        file = bisect.bisect_right(self._ends, position)
        start, length = self._places[file][position - (self._ends[file - 1] if file else 0)]
        with Path(self.paths[file]).open("rb") as stream:
            stream.seek(start)
            return np.array(stream.read(length), dtype=object)

    def __repr__(self) -> str:
        return f"TFRecordSource(paths={self.paths!r})"


def _places(path: str) -> list[tuple[int, int]]:
    """Where each record of a file begins, and its length."""
    size, offset = Path(path).stat().st_size, 0
    places: list[tuple[int, int]] = []
    with Path(path).open("rb") as stream:
        while offset < size:
            stream.seek(offset)
            header = stream.read(_HEADER)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == _HEADER else size
            places.append((offset + _HEADER, length))
            offset += _HEADER + length + _FOOTER
    if offset != size:
        raise InputError(f"{path} ends within record {len(places) - 1}. HINT: is it an uncompressed TFRecord file?")
    return places


class TFRecordDataset(Dataset):
    """A dataset of the records of TFRecord files, as bytes.

    Args:
      filenames: a name, several, or a dataset of names.
      compression_type: only none is supported.
      buffer_size: accepted for compatibility.
      num_parallel_reads: accepted for compatibility; the order is that of the files.

    Raises:
      ArgumentError: compressed files.

    Source: `tf.data.TFRecordDataset`.
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        del buffer_size, num_parallel_reads
        _check_uncompressed(compression_type)
        super().__init__(Indexed(grain.MapDataset.source(TFRecordSource(_names(filenames)))))


class TextLineDataset(Dataset):
    """A dataset of the lines of text files, as bytes without their ends; arguments as for `TFRecordDataset`.

    Source: `tf.data.TextLineDataset`.
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        del buffer_size, num_parallel_reads
        _check_uncompressed(compression_type)
        lines = grain.MapDataset.source(TextLineSource(_names(filenames)))
        super().__init__(Indexed(lines.map(lambda line: np.array(line.encode(), dtype=object))))


def _check_uncompressed(compression_type: str | None) -> None:
    if compression_type:
        raise ArgumentError(f"compression_type={compression_type!r} is not supported. HINT: unpack the files first.")


def _names(filenames: Any) -> list[str]:
    if isinstance(filenames, (str, bytes, PathLike)):
        filenames = [filenames]
    elif isinstance(filenames, Dataset):
        filenames = [np.asarray(name).item() for name in filenames.as_numpy_iterator()]
    names = np.asarray(filenames).ravel().tolist()
    return [name.decode() if isinstance(name, bytes) else fspath(name) for name in names]
