"""Many small arrays in one buffer, so that they travel in one collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SMALL_BYTES = 4096
"""Arrays up to this size share a collective: above it, in one process, copying costs more than it saves."""


def pack(arrays: Sequence[Any]) -> Any:
    """Writes arrays of one dtype behind each other into one vector.

    `dynamic_update_slice` rather than `concatenate`, which XLA's CPU compiler would fuse into whatever
    computes the arrays, at many times the cost.
    """
    total = sum(array.size for array in arrays)
    buffer = jnp.zeros(total, arrays[0].dtype)
    offset = 0
    for array in arrays:
        buffer = lax.dynamic_update_slice(buffer, array.reshape(-1), (np.int32(offset),))
        offset += array.size
    return buffer


def unpack(buffer: Any, arrays: Sequence[Any]) -> list[Any]:
    """Cuts `buffer` into arrays of the shapes of `arrays`: the inverse of `pack`."""
    pieces: list[Any] = []
    offset = 0
    for array in arrays:
        pieces.append(lax.slice_in_dim(buffer, offset, offset + array.size).reshape(array.shape))
        offset += array.size
    return pieces


def groups(arrays: Sequence[jax.Array], small_bytes: int = SMALL_BYTES) -> list[list[int]]:
    """Which arrays travel together: indices of small ones grouped by dtype, each large one alone.

    Args:
      arrays: the arrays, of any shapes and dtypes.
      small_bytes: the largest size in bytes that is packed.
    """
    alone: list[list[int]] = []
    together: dict[Any, list[int]] = {}
    for index, array in enumerate(arrays):
        if array.size * array.dtype.itemsize <= small_bytes:
            together.setdefault(array.dtype, []).append(index)
        else:
            alone.append([index])
    return [*alone, *together.values()]


def packed_map(collective: Callable[[Any], Any], arrays: Sequence[Any], small_bytes: int | None = None) -> list[Any]:
    """Applies an elementwise collective to every array, small ones packed.

    Args:
      collective: a function of an array that keeps its shape, such as an all-reduce.
      arrays: arrays of any shapes and dtypes.
      small_bytes: the largest size in bytes that is packed; `SMALL_BYTES` by default, 0 for none.

    Returns:
      The results, in the order of `arrays`.
    """
    results: list[Any] = [None] * len(arrays)
    for group in groups(arrays, SMALL_BYTES if small_bytes is None else small_bytes):
        members = [arrays[index] for index in group]
        if len(members) == 1:
            results[group[0]] = collective(members[0])
            continue
        for index, piece in zip(group, unpack(collective(pack(members)), members), strict=True):
            results[index] = piece
    return results
