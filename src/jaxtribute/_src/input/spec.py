"""Shapes and dtypes of a dataset's elements, found without reading them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxtribute._src.input.batches import Tree
from jaxtribute._src.input.splitting import Shard
from jaxtribute._src.values.spec import ArraySpec, PerReplicaSpec


def array_spec(array: Any) -> ArraySpec:
    """Shape and dtype of an array as JAX would hold it; strings and objects keep their NumPy dtype."""
    dtype = np.dtype(array.dtype)
    if dtype.kind not in "OSU":
        dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return ArraySpec(tuple(array.shape), dtype)


def tree_spec(tree: Tree, *, static: bool) -> Tree:
    """The spec of a global batch: its arrays' shapes and dtypes, with None for the rows unless they are static."""

    def spec(leaf: Any) -> ArraySpec:
        found = array_spec(leaf)
        if static or not found.shape:
            return found
        return ArraySpec((None, *found.shape[1:]), found.dtype)

    return jax.tree.map(spec, tree)


def replica_spec(spec: Tree, shard: Shard, *, split: bool) -> Tree:
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
            size: int | None = shape[0]
            even = size is not None and size % shard.replicas == 0
            shape = (size // shard.replicas if size is not None and even else None, *shape[1:])
        return PerReplicaSpec((ArraySpec(shape, leaf.dtype),) * shard.local)

    return jax.tree.map(cut, spec)
