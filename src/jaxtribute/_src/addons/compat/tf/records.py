"""Datasets of files: TFRecords and lines of text."""

from __future__ import annotations

import atexit
import shutil
import struct
import tempfile
import zlib
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import grain
import numpy as np

from jaxtribute._src.addons.compat.tf.conversion import TensorLike
from jaxtribute._src.addons.compat.tf.dataset import Dataset
from jaxtribute._src.addons.compat.tf.examples import check_compression
from jaxtribute._src.addons.compat.tf.pipelines import Indexed
from jaxtribute._src.addons.compat.tf.specs import TensorSpec, string
from jaxtribute._src.addons.sources.file_records import FileRecords, Places, TextLineSource
from jaxtribute.errors import InputError

_HEADER, _FOOTER = 12, 4
"""Bytes before a record: its length and a checksum of that. After it: a checksum of the record."""


class TFRecordSource(FileRecords):
    """The records of uncompressed TFRecord files, in order, with random access. Checksums are not looked at.

    Args:
      paths: the files.

    Raises:
      InputError: a file that ends within a record.
    """

    def __init__(self, paths: Sequence[str | PathLike[str]]) -> None:
        super().__init__(paths, _records)

    def __getitem__(self, index: SupportsIndex) -> np.ndarray[Any, Any]:
        # As an object: an array of NumPy's own bytes would lose zeros at the end.
        return np.array(self._read(int(index)), dtype=object)


def _records(path: str) -> tuple[Places, Places]:
    """Finds the beginning and the end of each record of a file."""
    size, offset = Path(path).stat().st_size, 0
    begins, ends = [], []
    with Path(path).open("rb") as stream:
        # Headers alone are read; records are when they are asked for, since a file may not fit into memory.
        while offset < size:
            stream.seek(offset)
            header = stream.read(_HEADER)
            # A header that is cut off counts as a record longer than the file, which the end below finds.
            length = struct.unpack("<Q", header[:8])[0] if len(header) == _HEADER else size
            begins.append(offset + _HEADER)
            ends.append(begins[-1] + length)
            offset = ends[-1] + _FOOTER
    # Short of the end or beyond it: cut off, compressed, or no file of records at all.
    if offset != size:
        raise InputError(f"{path} ends within record {len(ends) - 1}. HINT: is it an uncompressed TFRecord file?")
    return np.asarray(begins, np.int64), np.asarray(ends, np.int64)


class _FileDataset(Dataset):
    """A dataset of what files hold, as bytes.

    Args:
      filenames: a name, several, or a dataset of names.
      compression_type: `"GZIP"` or `"ZLIB"`: files are unpacked into a folder for temporary files first; None or `""`.
      buffer_size: accepted for compatibility.
      num_parallel_reads: accepted for compatibility; the order is that of the files.

    Raises:
      ArgumentError: another compression.
    """

    def __init__(
        self,
        filenames: TensorLike,
        compression_type: Literal["GZIP", "ZLIB", ""] | None = None,
        buffer_size: object = None,
        num_parallel_reads: object = None,
    ) -> None:
        names = _names(filenames)
        opened = self._opened(_unpacked(names, compression_type) if compression_type else names)
        super().__init__(Indexed(opened, spec=lambda: TensorSpec([], string)))

    @staticmethod
    def _opened(names: Sequence[str]) -> grain.MapDataset[Any]:
        raise NotImplementedError


class TFRecordDataset(_FileDataset):
    """The records of TFRecord files. Arguments are a name, several or a dataset of them.

    Source: `tf.data.TFRecordDataset`.
    """

    @staticmethod
    def _opened(names: Sequence[str]) -> grain.MapDataset[Any]:
        return grain.MapDataset.source(TFRecordSource(names))


class TextLineDataset(_FileDataset):
    """The lines of text files, without their ends; arguments as for `TFRecordDataset`.

    Source: `tf.data.TextLineDataset`.
    """

    @staticmethod
    def _opened(names: Sequence[str]) -> grain.MapDataset[Any]:
        return grain.MapDataset.source(TextLineSource(names)).map(lambda line: np.array(line.encode(), dtype=object))


def _unpacked(names: Sequence[str], kind: str) -> list[str]:
    """Unpacks files, which then can be read at any place, until the program ends."""
    check_compression(kind)
    folder = Path(tempfile.mkdtemp(prefix="jaxtribute-records-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    found: list[str] = []
    for number, name in enumerate(names):
        found.append(str(folder / f"{number}-{Path(name).name}"))
        with Path(name).open("rb") as packed, Path(found[-1]).open("wb") as plain:
            try:
                # Of zlib's two formats by the first bytes.
                unpack, end = zlib.decompressobj(zlib.MAX_WBITS | 32), True
                while data := packed.read(1 << 20):
                    plain.write(unpack.decompress(data))
                    end = unpack.eof
                if not end or unpack.unused_data:
                    raise EOFError("it is cut off, or something follows")
            except (zlib.error, EOFError) as error:
                raise InputError(f"{name} cannot be unpacked as {kind}: {error}. HINT: is it compressed?") from error
    return found


def _names(filenames: TensorLike) -> list[str]:
    if isinstance(filenames, (str, bytes, PathLike)):
        filenames = [filenames]
    elif isinstance(filenames, Dataset):
        filenames = [np.asarray(name).item() for name in filenames.as_numpy_iterator()]
    names = np.asarray(filenames).ravel().tolist()
    return [name.decode() if isinstance(name, bytes) else fspath(name) for name in names]
