"""Arrays in memory as a Grain data source."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grain
import jax
import numpy as np

from jaxtribute._src.core.input.batches import as_array, lengths_in, shapes_in
from jaxtribute._src.core.types import Foreign, Leaf, Nest
from jaxtribute._src.core.values.sparse import is_sparse
from jaxtribute.errors import InputError

if TYPE_CHECKING:
    Row = TypeVar("Row")

    class RowDataset(Generic[Row]):
        """A `grain.MapDataset` as checkers see it: its batches have the structure of its rows, which Grain forgets."""

        def __iter__(self) -> Iterator[Row]: ...
        def __len__(self) -> int: ...
        def __getitem__(self, index: int) -> Row: ...
        def __getattr__(self, name: str) -> Any: ...
        def batch(self, batch_size: int, *, drop_remainder: bool = False, batch_fn: Any = None) -> RowDataset[Row]: ...
        def map(self, transform: Any) -> RowDataset[Any]: ...
        def repeat(self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> RowDataset[Row]: ...
        def seed(self, seed: int) -> RowDataset[Row]: ...
        def shuffle(self, seed: int | None = None) -> RowDataset[Row]: ...
else:
    RowDataset = grain.MapDataset

_ALIGNMENT = 64
"""XLA uses host memory as a CPU device's buffer, without a copy, if it is aligned to so many bytes."""
_ALIGN_FROM = 1 << 14


class ArraySource:
    """The rows of one array, or of a tree of arrays of equal length, as records.

    A batched Grain pipeline over it that only shuffles, repeats, slices and batches is read by whole batches.

    Args:
      arrays: NumPy or JAX arrays of shape `(rows, ...)`, in any pytree. Lists are stacked, as `tf.data` does.

    Raises:
      InputError: for a scalar, for no arrays at all, for different numbers of rows, or for sparse or masked arrays.
    """

    leaves: list[Leaf]
    structure: Any

    def __init__(self, arrays: Nest) -> None:
        tree = jax.tree.map(_dense, arrays, is_leaf=lambda node: isinstance(node, list) or is_sparse(node))
        lengths = lengths_in(tree)
        if len(lengths) != 1 or None in lengths:
            raise InputError(
                "the arrays of a dataset must have one common length along axis 0, but their shapes are "
                f"{shapes_in(tree) or 'none'}. HINT: give arrays of shape (examples, ...)."
            )
        self.leaves, self.structure = jax.tree.flatten(tree)
        self._length = len(self.leaves[0])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Foreign) -> Nest:
        return self.take(index)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{leaf.shape} {leaf.dtype}" for leaf in self.leaves)
        return f"ArraySource({shapes})"

    def take(self, indices: Foreign) -> Nest:
        """The records at the given positions, as one tree of arrays; a single position gives one record."""
        return self.structure.unflatten([_rows(leaf, indices) for leaf in self.leaves])


def _dense(array: Leaf) -> Any:
    if is_sparse(array):
        raise InputError(
            f"a sparse matrix of shape {array.shape} as a dataset, whose rows cannot be read one by one. HINT: pass "
            "matrix.todense(), or an iterable of batches, which may be sparse and become dense one at a time."
        )
    return as_array(array)


def _rows(array: np.ndarray[Any, Any], indices: Foreign) -> Any:
    """The rows at the given positions. If there is much to copy, into memory that a CPU device can use as it is."""
    # A single position makes a view, and strings and objects have no memory that a device could use.
    if not isinstance(indices, np.ndarray) or array.dtype.hasobject:
        return array[indices]
    shape = (len(indices), *array.shape[1:])
    size = math.prod(shape) * array.itemsize
    if size < _ALIGN_FROM:
        return array[indices]
    # Some bytes more, so that the array can begin at an aligned one of them.
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    out = memory[start : start + size].view(array.dtype).reshape(shape)
    # With its default mode NumPy would copy through a buffer; no index is out of range here.
    return np.take(array, indices, axis=0, out=out, mode="clip")


def make_numpy_dataset(numpy_input: Nest) -> grain.MapDataset[Any]:
    """Makes a Grain dataset of the rows of arrays.

    Args:
      numpy_input: NumPy or JAX arrays of shape `(rows, ...)`, in any pytree. Lists of arrays are stacked.

    Returns:
      A `grain.MapDataset` with one record a row: shuffle, repeat and batch it as you like.

    Raises:
      InputError: if the arrays differ in length, or one is a scalar.

    Source: `tf.distribute.Strategy.experimental_make_numpy_dataset`.
    """
    return grain.MapDataset.source(ArraySource(numpy_input))
