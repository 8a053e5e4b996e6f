"""Arrays stored in slices, one a replica: cut, and put together again inside one replica's program."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.jaxprs.making import identity, linear_with_probe
from jaxtribute._src.types import Nest, Numeric
from jaxtribute._src.values.mesh import AXIS

alike_p = identity("jd_alike")
"""The identity on a value that must be the same on every replica; inference raises an error where it is not."""


def slice_size(size: int, replicas: int) -> int:
    """Number of elements that each of `replicas` holds of an array of `size` elements."""
    return -(-size // replicas)


def flat(array: Numeric, replicas: int) -> Any:
    """The array as a vector, padded with zeros to a multiple of `replicas`."""
    vector = array.reshape(-1)
    missing = -vector.size % replicas
    return jnp.pad(vector, (0, missing)) if missing else vector


def by_rows(shape: tuple[int, ...], replicas: int) -> bool:
    """True if the slices of an array of this shape, of elements in order, are equal numbers of its whole rows.

    Such an array is cut and joined by rows: where devices lay arrays out in tiles, as TPUs do, making a vector of it
    would copy all of it, and the TPU compiler has no reduce-scatter of vectors.
    """
    return len(shape) > 1 and shape[0] % replicas == 0


def slice_of(array: Numeric, replicas: int) -> Any:
    """This replica's slice of an array that every replica holds: a vector."""
    if by_rows(array.shape, replicas):
        rows = array.shape[0] // replicas
        return lax.dynamic_slice_in_dim(array, lax.axis_index(AXIS) * np.int32(rows), rows).reshape(-1)
    size = slice_size(array.size, replicas)
    start = lax.axis_index(AXIS) * np.int32(size)
    return lax.dynamic_slice_in_dim(flat(array, replicas), start, size)


def scattered(array: Numeric, replicas: int) -> Any:
    """This replica's slice of the sum of the replicas' arrays: a vector.

    Between processes on CPU the replicas send each other their slices, and each adds up its own. Gloo's reduce-scatter
    takes longer for large arrays, and up to JAX 0.11 it fails where a process comes 30 s late.
    """
    direct = jax.process_count() == 1 or jax.default_backend() != "cpu"
    if direct and by_rows(array.shape, replicas):
        return lax.psum_scatter(array, AXIS, scatter_dimension=0, tiled=True).reshape(-1)
    vector = flat(array, replicas)
    if direct:
        return lax.psum_scatter(vector, AXIS, scatter_dimension=0, tiled=True)
    rows = lax.all_to_all(vector.reshape(replicas, -1), AXIS, 0, 0, tiled=True)
    return jnp.sum(rows, axis=0, dtype=array.dtype)


def joined(piece: Numeric, shape: tuple[int, ...]) -> Any:
    """The array of shape `shape` whose slices the replicas hold, on every replica."""
    replicas = lax.axis_size(AXIS)
    if by_rows(shape, replicas):
        return lax.all_gather(piece.reshape(shape[0] // replicas, *shape[1:]), AXIS, axis=0, tiled=True)
    gathered = lax.all_gather(piece, AXIS, axis=0, tiled=True)
    size = math.prod(shape)
    return (gathered if gathered.size == size else gathered[:size]).reshape(shape)


def whole(piece: Numeric, shape: tuple[int, ...], replicas: int, probe: Numeric = None) -> Any:
    """Puts slices together like `joined`, as one operation of the program.

    Args:
      piece: this replica's slice, a vector.
      shape: the array's shape.
      replicas: how many replicas there are.
      probe: zeros of that shape, whose gradient will be this replica's own gradient of the array. The gradient of
        `piece` is the slice of the sum over the replicas.
    """
    operands = (piece,) if probe is None else (piece, probe)
    return whole_p.bind(*operands, shape=shape, replicas=replicas, axis_name=AXIS)


def alike(value: Numeric, name: str) -> Any:
    """`value`, which variable `name` takes as the same on all replicas."""
    return alike_p.bind(value, name=name)


def _whole(piece: Numeric, *, shape: tuple[int, ...], **_: Nest) -> Any:
    return joined(piece, shape)


def _transposed(cotangent: Numeric, *, replicas: int, **_: Nest) -> Any:
    return scattered(cotangent, replicas)


whole_p = linear_with_probe("jd_whole", _whole, _transposed)
"""The array whose slices the replicas hold, on every replica. One operation, so that it can be told apart: it may be
computed anew in the backward pass rather than kept. A second operand adds nothing, and gets the replica's own
gradient of the array."""
