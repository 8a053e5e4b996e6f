"""Splitting nests of arguments and results into arrays and everything else."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxtribute._src.values.distributed import ReplicaValues
from jaxtribute._src.values.variable import Variable


def is_distributed(value: Any) -> bool:
    """True if `value` has one component a replica."""
    return isinstance(value, ReplicaValues)


def is_whole(value: Any) -> bool:
    """True if `value` is one thing to the library, though JAX could look into it."""
    return isinstance(value, (ReplicaValues, Variable))


def is_array(value: Any) -> bool:
    """True if `value` is an array on a device, in a trace or in NumPy."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic))


def opened(nest: Any) -> Any:
    """A nest of variables with those of each `jd.Model` in it in the model's place."""

    def parameters(leaf: Any) -> Any:
        return getattr(leaf, "__jd_parameters__", leaf)

    return jax.tree.map(parameters, nest, is_leaf=lambda leaf: isinstance(leaf, Variable))


def flatten(nest: Any) -> tuple[list[Any], Any]:
    """The leaves of `nest`, distributed values and variables kept whole, and its structure."""
    return jax.tree.flatten(nest, is_leaf=is_whole)


def map_leaves(function: Any, *nests: Any) -> Any:
    """Applies `function` to the leaves of nests of one structure, distributed values and variables kept whole."""
    return jax.tree.map(function, *nests, is_leaf=is_whole)
