"""The number of examples in an element of a dataset."""

from __future__ import annotations

import jax
import numpy as np

from jaxtribute import PerReplica
from jaxtribute.typing import Foreign, Nest


def examples_in(element: Nest) -> int:
    """Examples in an element of a dataset, counted along axis 0: those of all workers where they share one array.

    Args:
      element: a batch on the host, or one that lies on the replicas' devices.
    """
    # The usual batch, an array or a tuple of arrays: JAX takes microseconds to find its leaves.
    first = element[0] if type(element) is tuple and element else element
    if isinstance(first, jax.Array | np.ndarray):
        return _rows(first)
    # As a leaf: rows over all replicas are counted, and not those of its parts.
    leaves: list[Foreign] = jax.tree.leaves(element, is_leaf=lambda leaf: isinstance(leaf, PerReplica))
    if not leaves:
        return 0
    first = leaves[0]
    if not isinstance(first, PerReplica):
        return _rows(first)
    if first.shapes is not None:
        return sum(shape[0] for shape in first.shapes if shape)
    return sum(map(_rows, first.values)) if first.is_tuple else _rows(first.data)


def _rows(array: Foreign) -> int:
    shape = np.shape(array)
    # A scalar stands for one example.
    return int(shape[0]) if shape else 1
