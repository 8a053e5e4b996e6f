"""Division of a variable over parameter servers: `jd.experimental.partitioners`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxtribute.errors import ArgumentError
from jaxtribute.extending import settings
from jaxtribute.typing import DType


class Partitioner(ABC):
    """Says into how many shards a variable is split along each axis.

    Source: `tf.distribute.experimental.partitioners.Partitioner`.
    """

    @abstractmethod
    def __call__(self, shape: Sequence[int], dtype: DType, axis: int = 0) -> list[int]:
        """Returns the number of shards along each axis: 1 but for `axis`.

        Args:
          shape: the shape of the whole variable.
          dtype: its element type.
          axis: the axis to split.

        Raises:
          ArgumentError: `shape` has no such axis.
        """


class FixedShardsPartitioner(Partitioner):
    """Splits every variable into the same number of shards, or one a row if there are fewer rows.

    Args:
      num_shards: how many shards, at least 1.

    Raises:
      ArgumentError: `num_shards` is less than 1.

    Source: `tf.distribute.experimental.partitioners.FixedShardsPartitioner`.
    """

    def __init__(self, num_shards: int) -> None:
        self._shards = settings.whole("num_shards", num_shards, 1)

    def __call__(self, shape: Sequence[int], dtype: DType, axis: int = 0) -> list[int]:
        """Returns `num_shards` along `axis`, at most its length."""
        return _along(shape, axis, self._shards)


class MinSizePartitioner(Partitioner):
    """Makes as many shards as it can of at least some size.

    Args:
      min_shard_bytes: the least size of a shard, in bytes.
      max_shards: the most shards.
      bytes_per_string: what an element of a dtype of strings counts.

    Raises:
      ArgumentError: an argument is less than 1.

    Source: `tf.distribute.experimental.partitioners.MinSizePartitioner`.
    """

    def __init__(self, min_shard_bytes: int = 256 << 10, max_shards: int = 1, bytes_per_string: int = 16) -> None:
        self._bytes = settings.whole("min_shard_bytes", min_shard_bytes, 1)
        self._shards = settings.whole("max_shards", max_shards, 1)
        self._string = settings.whole("bytes_per_string", bytes_per_string, 1)

    def __call__(self, shape: Sequence[int], dtype: DType, axis: int = 0) -> list[int]:
        """Returns how often `min_shard_bytes` fits into the variable, rounded up, along `axis`."""
        total = math.prod(shape) * _element_bytes(dtype, self._string)
        return _along(shape, axis, min(self._shards, math.ceil(total / self._bytes)))


class MaxSizePartitioner(Partitioner):
    """Makes as few shards as it can of at most some size; a single row may be larger.

    Args:
      max_shard_bytes: the largest size of a shard, in bytes.
      max_shards: the most shards, whatever their size; by default there is no limit.
      bytes_per_string: what an element of a dtype of strings counts.

    Raises:
      ArgumentError: an argument is less than 1.

    Source: `tf.distribute.experimental.partitioners.MaxSizePartitioner`.
    """

    def __init__(self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16) -> None:
        self._bytes = settings.whole("max_shard_bytes", max_shard_bytes, 1)
        self._shards = settings.whole("max_shards", max_shards, 1, optional=True)
        self._string = settings.whole("bytes_per_string", bytes_per_string, 1)

    def __call__(self, shape: Sequence[int], dtype: DType, axis: int = 0) -> list[int]:
        """Returns the number of shards along `axis` into which whole rows of it fit."""
        length = _length(shape, axis)
        # Without elements no row has a size, and there is nothing to divide.
        if not math.prod(shape):
            return [1] * len(shape)
        # A row is what one step along `axis` holds: shards are of whole rows.
        row = math.prod(shape) / length * _element_bytes(dtype, self._string)
        shards = math.ceil(length / max(1, math.floor(self._bytes / row)))
        return _along(shape, axis, shards if self._shards is None else min(self._shards, shards))


def shards_of(partitioner: Partitioner, shape: Sequence[int], dtype: DType) -> int:
    """Returns the number of shards into which a partitioner splits the first axis of a variable.

    Args:
      partitioner: a `Partitioner`, or another function of `shape` and `dtype`.
      shape: the variable's shape, of at least one axis.
      dtype: its element type.

    Raises:
      ArgumentError: it gives no number for each axis, or splits another axis.
    """
    counts: Any = partitioner(shape=tuple(shape), dtype=dtype)
    fits = isinstance(counts, (list, tuple, np.ndarray)) and len(counts) == len(shape)
    if not fits or not all(isinstance(count, (int, np.integer)) and count >= 1 for count in counts):
        raise ArgumentError(
            f"the variable_partitioner gives {counts!r} for a variable of shape {tuple(shape)}. "
            "HINT: it returns a list with a number of shards, at least 1, for each axis."
        )
    if any(count > 1 for count in counts[1:]):
        raise ArgumentError(
            f"the variable_partitioner splits a variable of shape {tuple(shape)} into {list(counts)}. "
            "HINT: parameter servers split the first axis only."
        )
    return int(counts[0])


def shard_offsets(length: int, shards: int) -> list[int]:
    """Start of each of `shards` shards of an axis, and the axis's end; the first ones are one row longer."""
    whole, extra = divmod(length, shards)
    return [i * whole + min(i, extra) for i in range(shards + 1)]


def _length(shape: Sequence[int], axis: int) -> int:
    if not 0 <= axis < len(shape):
        raise ArgumentError(f"shape {tuple(shape)} has no axis {axis} to split. HINT: scalars are not partitioned.")
    return shape[axis]


def _along(shape: Sequence[int], axis: int, shards: int) -> list[int]:
    result = [1] * len(shape)
    result[axis] = max(1, min(_length(shape, axis), shards))
    return result


def _element_bytes(dtype: DType, string: int) -> int:
    if dtype == "string":
        return string
    kind = np.dtype(dtype)
    return string if kind.kind in "SUO" else kind.itemsize
