"""Many small arrays in one buffer, so that they travel in one collective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

PIECE_BYTES = 192 << 10
"""Largest size that is packed in one loop, and by default of all that shares a collective.

XLA's CPU compiler divides a larger loop among the threads of a pool, where its parts wait for the programs of other
devices: packing 340 KB in one took five times as long as the step around it.
"""


def pack(arrays: Sequence[Any]) -> Any:
    """Writes arrays of one dtype behind each other into one vector, in pieces of up to `PIECE_BYTES`."""
    flat = [array.reshape(-1) for array in arrays]
    pieces = [jnp.concatenate([flat[index] for index in piece]) for piece in _divided(range(len(flat)), flat)]
    if len(pieces) == 1:
        return pieces[0]
    buffer, offset = jnp.zeros(sum(piece.size for piece in pieces), pieces[0].dtype), 0
    for piece in pieces:  # a concatenation would be one loop
        buffer = lax.dynamic_update_slice(buffer, piece, (np.int32(offset),))
        offset += piece.size
    return buffer


def unpack(buffer: Any, arrays: Sequence[Any]) -> list[Any]:
    """Cuts `buffer` into arrays of the shapes of `arrays`: the inverse of `pack`."""
    pieces: list[Any] = []
    offset = 0
    for array in arrays:
        pieces.append(lax.slice_in_dim(buffer, offset, offset + array.size).reshape(array.shape))
        offset += array.size
    return pieces


def groups(arrays: Sequence[jax.Array], small_bytes: int | None = None) -> list[list[int]]:
    """Groups arrays that travel together: indices of small ones grouped by dtype, each large one alone.

    Args:
      arrays: the arrays, of any shapes and dtypes.
      small_bytes: the largest size in bytes that is packed, as many together as there are; None for packs of up to
        `PIECE_BYTES`.
    """
    most = PIECE_BYTES if small_bytes is None else small_bytes
    alone: list[list[int]] = []
    together: dict[Any, list[int]] = {}
    for index, array in enumerate(arrays):
        if _bytes(array) <= most:
            together.setdefault(array.dtype, []).append(index)
        else:
            alone.append([index])
    if small_bytes is not None:
        return [*alone, *together.values()]
    return [*alone, *(part for indices in together.values() for part in _divided(indices, arrays))]


def _divided(indices: Iterable[int], arrays: Sequence[Any]) -> list[list[int]]:
    """Neighbours together, up to `PIECE_BYTES`."""
    parts: list[list[int]] = []
    room = 0
    for index in indices:
        room -= _bytes(arrays[index])
        if room < 0 or not parts:
            parts.append([])
            room = PIECE_BYTES - _bytes(arrays[index])
        parts[-1].append(index)
    return parts


def _bytes(array: Any) -> int:
    return array.size * array.dtype.itemsize


def packed_map(collective: Callable[[Any], Any], arrays: Sequence[Any], small_bytes: int | None = None) -> list[Any]:
    """Applies an elementwise collective to every array, small ones packed.

    Args:
      collective: a function of an array that keeps its shape, such as an all-reduce.
      arrays: arrays of any shapes and dtypes.
      small_bytes: see `groups`; 0 packs nothing but empty arrays.

    Returns:
      The results, in the order of `arrays`.
    """
    results: list[Any] = [None] * len(arrays)
    for group in groups(arrays, small_bytes):
        members = [arrays[index] for index in group]
        if len(members) == 1:
            results[group[0]] = collective(members[0])
            continue
        for index, piece in zip(group, unpack(collective(pack(members)), members), strict=True):
            results[index] = piece
    return results
