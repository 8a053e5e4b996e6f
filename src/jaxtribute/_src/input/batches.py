"""Batches on the host: trees of arrays with a common first axis."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from jaxtribute.errors import InputError

Tree: TypeAlias = Any
"""A pytree of arrays."""

_BATCH_FIRST = (
    "HINT: batch the dataset by the global batch size first, e.g. dataset.batch(256); "
    "for arrays, strategy.experimental_make_numpy_dataset(arrays).batch(256)."
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows `[start, start + length)` of a batch of `total` rows, as read by one worker.

    Attributes:
      tree: arrays of shape `(length, ...)`; for an unbatched scalar element `total` is None and shapes are free.
      total: rows of the whole batch, over all workers.
      start: where the rows of `tree` begin in it.
    """

    tree: Tree
    total: int | None
    start: int = 0


def is_sparse(value: Any) -> bool:
    """True for sparse matrices of JAX (BCOO and its like) and of SciPy."""
    ours, scipys = sys.modules.get("jax.experimental.sparse"), sys.modules.get("scipy.sparse")
    return (ours is not None and isinstance(value, ours.JAXSparse)) or (scipys is not None and scipys.issparse(value))


def as_array(leaf: Any) -> Any:
    """Returns the leaf as an array: JAX and NumPy arrays as they are, sparse matrices dense, others through NumPy.

    Raises:
      InputError: for a masked array.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        raise InputError(
            f"a masked array of shape {leaf.shape}: arrays on devices have no mask, so it would be lost. HINT: pass "
            "array.filled(value), and the mask as an array of its own."
        )
    if isinstance(leaf, (jax.Array, np.ndarray)):
        return leaf
    if is_sparse(leaf):  # its own arrays are as long as there are entries, and cannot be cut by rows
        return np.asarray(leaf.todense())
    return np.asarray(leaf)


def as_batch(element: Tree) -> Batch:
    """Returns a dataset's element as a batch.

    Raises:
      InputError: if its arrays have different lengths along axis 0, or one is masked.
    """
    tree = jax.tree.map(as_array, element, is_leaf=is_sparse)
    paths = jax.tree.leaves_with_path(tree)
    lengths = {len(leaf) if leaf.ndim else None for _, leaf in paths}
    if len(lengths) > 1 and None not in lengths:
        described = ", ".join(f"{path_name(path)}: {leaf.shape}" for path, leaf in paths)
        raise InputError(
            f"the arrays of one batch have different numbers of rows ({described}). "
            "HINT: give all arrays of an element the same axis 0."
        )
    return Batch(tree, None if None in lengths else lengths.pop() if lengths else None)


def path_name(path: Sequence[Any]) -> str:
    """The place of a leaf in its tree, for messages."""
    return "element" + jax.tree_util.keystr(tuple(path))


def check_splittable(batch: Batch, replicas: int) -> int:
    """Returns the batch's number of rows.

    Raises:
      InputError: if it is an unbatched scalar, which cannot be cut for more than one replica.
    """
    if batch.total is not None:
        return batch.total
    paths = jax.tree.leaves_with_path(batch.tree)
    scalars = ", ".join(path_name(path) for path, leaf in paths if not leaf.ndim) or "an element without arrays"
    raise InputError(f"{scalars}: a scalar cannot be split over {replicas} replicas. {_BATCH_FIRST}")


def rows(tree: Tree, start: int, stop: int) -> Tree:
    """The rows `[start, stop)` of every array of a tree, as views where the arrays allow it."""
    return jax.tree.map(lambda leaf: leaf[start:stop], tree)


def split(tree: Tree, sizes: Sequence[int]) -> list[Tree]:
    """Cuts every array of a tree into consecutive pieces of the given sizes."""
    leaves, structure = jax.tree.flatten(tree)
    pieces: list[Tree] = []
    start = 0
    for size in sizes:
        pieces.append(structure.unflatten([leaf[start : start + size] for leaf in leaves]))
        start += size
    return pieces


def empty_like(tree: Tree) -> Tree:
    """The tree with no rows: arrays, or anything with shape and dtype, become arrays of shape `(0, ...)`."""
    return jax.tree.map(lambda leaf: np.empty((0, *(size or 0 for size in leaf.shape[1:])), leaf.dtype), tree)


def own(tree: Tree) -> Tree:
    """Copies the NumPy arrays of a tree, for a producer that may write into them again."""
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, tree)
