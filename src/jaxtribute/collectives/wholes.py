"""Arrays stored in slices, one a replica: cut, and put together again inside one replica's program."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute.jaxprs.making import identity, linear_with_probe
from jaxtribute.values.mesh import AXIS

alike_p = identity("jd_alike")
"""The identity on a value that must be the same on every replica; inference raises an error where it is not."""


def slice_size(size: int, replicas: int) -> int:
    """Number of elements that each of `replicas` holds of an array of `size` elements."""
    return -(-size // replicas)


def flat(array: Any, replicas: int) -> Any:
    """The array as a vector, padded with zeros to a multiple of `replicas`."""
    vector = array.reshape(-1)
    missing = -vector.size % replicas
    return jnp.pad(vector, (0, missing)) if missing else vector


def slice_of(array: Any, replicas: int) -> Any:
    """This replica's slice of an array that every replica holds: a vector."""
    size = slice_size(array.size, replicas)
    start = lax.axis_index(AXIS) * np.int32(size)
    return lax.dynamic_slice_in_dim(flat(array, replicas), start, size)


def scattered(array: Any, replicas: int) -> Any:
    """This replica's slice of the sum of the replicas' arrays: a vector.

    Between processes on CPU the replicas send each other their slices, and each adds up its own. Gloo's reduce-scatter
    takes longer for large arrays, and up to JAX 0.11 it fails where a process comes 30 s late.
    """
    vector = flat(array, replicas)
    if jax.process_count() == 1 or jax.default_backend() != "cpu":
        return lax.psum_scatter(vector, AXIS, scatter_dimension=0, tiled=True)
    rows = lax.all_to_all(vector.reshape(replicas, -1), AXIS, 0, 0, tiled=True)
    return jnp.sum(rows, axis=0, dtype=array.dtype)


def joined(piece: Any, shape: tuple[int, ...]) -> Any:
    """The array of shape `shape` whose slices the replicas hold, on every replica."""
    gathered = lax.all_gather(piece, AXIS, axis=0, tiled=True)
    size = math.prod(shape)
    return (gathered if gathered.size == size else gathered[:size]).reshape(shape)


def whole(piece: Any, shape: tuple[int, ...], replicas: int, probe: Any = None) -> Any:
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


def alike(value: Any, name: str) -> Any:
    """`value`, which variable `name` takes as the same on all replicas."""
    return alike_p.bind(value, name=name)


def _whole(piece: Any, *, shape: tuple[int, ...], **_: Any) -> Any:
    return joined(piece, shape)


def _transposed(cotangent: Any, *, replicas: int, **_: Any) -> Any:
    return scattered(cotangent, replicas)


whole_p = linear_with_probe("jd_whole", _whole, _transposed)
"""The array whose slices the replicas hold, on every replica. One operation, so that it can be told apart: it may be
computed anew in the backward pass rather than kept. A second operand adds nothing, and gets the replica's own
gradient of the array."""
