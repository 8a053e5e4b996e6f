"""Batches on the host: trees of arrays with a common first axis, and their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.types import Leaf, Nest
from jaxtribute._src.core.values.sparse import is_sparse
from jaxtribute._src.core.values.spec import ArraySpec, PerReplicaSpec
from jaxtribute.errors import InputError

_BATCH_FIRST = (
    "HINT: batch the dataset by the global batch size first, e.g. dataset.batch(256), or for arrays, strategy."
    "experimental_make_numpy_dataset(arrays).batch(256); what has no rows, as a rate, is an argument beside the batch."
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows `[start, start + length)` of a batch of `total` rows, as read by one worker.

    Attributes:
      tree: arrays of shape `(length, ...)`; for an unbatched scalar element `total` is None and shapes are free.
      total: rows of the whole batch, over all workers.
      start: where the rows of `tree` begin in it.
    """

    tree: Nest
    total: int | None
    start: int = 0


def as_array(leaf: Leaf) -> Any:
    """Returns the leaf as an array: JAX and NumPy arrays as they are, sparse matrices dense, others through NumPy.

    Raises:
      InputError: for a masked array.
    """
    # Before the test for arrays, which a masked one passes.
    if isinstance(leaf, np.ma.MaskedArray):
        raise InputError(
            f"a masked array of shape {leaf.shape}: arrays on devices have no mask, so it would be lost. HINT: pass "
            "array.filled(value), and the mask as an array of its own."
        )
    if isinstance(leaf, (jax.Array, np.ndarray)):
        return leaf
    # A sparse matrix's own arrays are as long as there are entries, and cannot be cut by rows.
    return np.asarray(leaf.todense() if is_sparse(leaf) else leaf)


def as_batch(element: Nest) -> Batch:
    """Returns a dataset's element as a batch.

    Args:
      element: a tree of arrays with a common first axis.

    Raises:
      InputError: if its arrays have different lengths along axis 0, or one is masked.
    """
    leaves, structure = jax.tree.flatten(element)
    # Mostly all are arrays, of which nothing is to be made; a sparse one has parts that are none of NumPy's.
    if not all(type(leaf) is np.ndarray for leaf in leaves):
        leaves, structure = jax.tree.flatten(jax.tree.map(as_array, element, is_leaf=is_sparse))
    tree, lengths = structure.unflatten(leaves), set(map(_length, leaves))
    # A scalar in an element is not an error yet: one replica takes it whole, and only splitting refuses it.
    if len(lengths) > 1 and None not in lengths:
        raise InputError(
            f"the arrays of one batch have different numbers of rows ({shapes_in(tree)}). "
            "HINT: give all arrays of an element the same axis 0."
        )
    return Batch(tree, None if None in lengths else lengths.pop() if lengths else None)


def lengths_in(tree: Nest) -> set[int | None]:
    """The lengths along axis 0 of a tree's arrays; None among them for an array without that axis."""
    return set(map(_length, jax.tree.leaves(tree)))


def _length(leaf: Leaf) -> int | None:
    return len(leaf) if leaf.ndim else None


def shapes_in(tree: Nest) -> str:
    """The shapes of a tree's arrays by their places, for messages."""
    return ", ".join(f"{path_name(path)}: {leaf.shape}" for path, leaf in jax.tree.leaves_with_path(tree))


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
    for path, leaf in paths:
        if leaf.dtype == object and not leaf.ndim and not isinstance(item := leaf.item(), str | bytes):
            raise InputError(
                f"{path_name(path)} is a {type(item).__name__}, and no array. HINT: make arrays of it first; of "
                "windows, dataset.window(n, drop_remainder=True).flat_map(lambda window: window.batch(n))."
            )
    scalars = ", ".join(path_name(path) for path, leaf in paths if not leaf.ndim) or "an element without arrays"
    raise InputError(f"{scalars}: a scalar cannot be split over {replicas} replicas. {_BATCH_FIRST}")


def rows(tree: Nest, start: int, stop: int) -> Nest:
    """The rows `[start, stop)` of every array of a tree, as views where the arrays allow it."""
    return jax.tree.map(lambda leaf: leaf[start:stop], tree)


def split(tree: Nest, sizes: Sequence[int]) -> list[Nest]:
    """Cuts every array of a tree into consecutive pieces of the given sizes."""
    leaves, structure = jax.tree.flatten(tree)
    # Views of NumPy's arrays: nothing is copied on the way to the devices.
    pieces: list[Nest] = []
    start = 0
    for size in sizes:
        pieces.append(structure.unflatten([leaf[start : start + size] for leaf in leaves]))
        start += size
    return pieces


def empty_like(tree: Nest) -> Nest:
    """The tree with no rows: arrays, or anything with shape and dtype, become arrays of shape `(0, ...)`."""
    return jax.tree.map(lambda leaf: np.empty((0, *(size or 0 for size in leaf.shape[1:])), leaf.dtype), tree)


def copied(tree: Nest) -> Nest:
    """Copies the NumPy arrays of a tree, for a producer that may write into them again.

    Args:
      tree: a batch, or a part of one.
    """
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, tree)


def array_spec(array: Leaf) -> ArraySpec:
    """Shape and dtype of an array as JAX would hold it; strings and objects keep their NumPy dtype."""
    dtype = np.dtype(array.dtype)
    return ArraySpec(tuple(array.shape), dtype if dtype.kind in "OSU" else jax.dtypes.canonicalize_dtype(dtype))


def tree_spec(tree: Nest, *, static: bool) -> Nest:
    """The spec of a global batch: its arrays' shapes and dtypes, with None for the rows unless they are static."""

    def spec(leaf: Leaf) -> ArraySpec:
        single = array_spec(leaf)
        return single if static or not single.shape else ArraySpec((None, *single.shape[1:]), single.dtype)

    return jax.tree.map(spec, tree)


def replica_spec(spec: Nest, shard: Shard, *, split: bool) -> Nest:
    """The spec of a distributed element.

    Args:
      spec: of the dataset's own elements: `ArraySpec` leaves, None for rows that vary.
      shard: how many replicas share an element.
      split: whether the rows are cut for the replicas, or each replica gets an element of its own.

    Returns:
      The tree with `PerReplicaSpec` leaves, or unchanged for one replica.
    """
    if shard.replicas == 1:
        return spec

    def cut(leaf: ArraySpec) -> PerReplicaSpec:
        shape = leaf.shape
        if split and shape:
            size, rest = (None, 0) if shape[0] is None else divmod(shape[0], shard.replicas)
            # Where the cut is even all replicas have one shape, which can be told ahead.
            shape = (None if rest else size, *shape[1:])
        return PerReplicaSpec((ArraySpec(shape, leaf.dtype),) * shard.local)

    return jax.tree.map(cut, spec)
