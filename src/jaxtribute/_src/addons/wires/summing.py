"""Sums over the replicas in which large float32 arrays travel in a smaller type, registered at the core's point.

An array is cut into a piece for each replica. The replicas send each other pieces, rounded to the small type; each adds
up its own piece in float32, in the order of the replicas, rounds the sum once, and sends it to all. So every replica
gets the same bits, and an element is rounded twice whatever the number of replicas is. Two replicas send each other
the whole array, which is as much, and add up what both have rounded: an element is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jaxtribute as jd
from jaxtribute._src.addons.wires.formats import FORMATS, Format
from jaxtribute.extending import Packs, Summation, points
from jaxtribute.typing import Array

LEAST_ELEMENTS = 4096
"""Smallest number of elements of an array that is rounded: below it, messages cost more than what is in them."""
PIECE = 1 << 19
"""Elements that two processes send each other at a time: Gloo sends larger messages one way after the other.

Measured on a cable of 1 Gbit/s: 12 MB each way take 122 ms in such pieces, 158 at once, and 180 by pieces for each
replica; the cable alone takes 96.
"""
TIME_SHARE = 1.5
"""Time for a byte of rounded elements, in terms of a plain sum's: they are encoded, and come in more messages.

Measured in steps of two machines: with 1.1 gradients of 784 x 2048 were rounded that took 28 ms less by their factors.
"""
WRITTEN_OUT = 8
"""Replicas whose rows are added without a loop."""


class WireSum(Summation):
    """A sum of which large float32 arrays travel in a smaller type, and all others by another sum.

    Args:
      rest: the other sum.
      wire: the type's name.
    """

    def __init__(self, rest: Summation, wire: str) -> None:
        self.rest, self.wire = rest, wire

    @property
    def shared_bytes(self) -> int:
        return self.rest.shared_bytes

    @property
    def operations_per_byte(self) -> float:
        return self.rest.operations_per_byte

    @property
    def sent_share(self) -> float:
        return TIME_SHARE * FORMATS[self.wire].bytes_per_element / 4

    def __call__(self, arrays: Sequence[Any], replicas: int) -> list[Any]:
        """Two collectives for each pack of large arrays."""
        rounded = [index for index, array in enumerate(arrays) if _is_rounded(array)]
        others = [index for index in range(len(arrays)) if index not in set(rounded)]
        totals = dict(zip(others, self.rest([arrays[index] for index in others], replicas), strict=True))
        totals |= zip(rounded, self._rounded([arrays[index] for index in rounded], replicas), strict=True)
        return [totals[index] for index in range(len(arrays))]

    def _rounded(self, arrays: list[Any], replicas: int) -> list[Any]:
        if not arrays:
            return []
        # As many together as the other sum puts into a message; what is larger goes alone.
        packs, wire = Packs(0, self.rest.shared_bytes), FORMATS[self.wire]
        # Accelerators' libraries send large messages best.
        piece = PIECE if self.operations_per_byte else None

        def total(leaves: list[Any]) -> list[Any]:
            whole = [_padded(leaf.reshape(-1), wire.block) for leaf in leaves]
            sums = packs.apply(lambda array: exchanged(array, replicas, wire, piece), whole)
            return [flat[: leaf.size].reshape(leaf.shape) for flat, leaf in zip(sums, leaves, strict=True)]

        # The gradient is the same sum of the cotangents: what rounding does to bits has none of its own.
        call = jax.custom_vjp(total)
        call.defvjp(lambda leaves: (total(leaves), None), lambda _, cotangents: (total(cotangents),))
        return call(arrays)


def _is_rounded(array: Array) -> bool:
    return array.dtype == jnp.float32 and array.size >= LEAST_ELEMENTS


def _padded(flat: Array, multiple: int) -> Array:
    """A vector with zeros up to a multiple: so that no block is of two arrays, which might be of different sizes."""
    return jnp.pad(flat, (0, -flat.size % multiple))


def exchanged(array: Array, replicas: int, wire: Format, piece: int | None = None) -> Array:
    """The sum of the replicas' vectors, of which all that travels is of the type of `wire`.

    Args:
      array: this replica's, in float32, as long as some blocks of `wire`.
      replicas: how many there are.
      wire: how elements travel.
      piece: elements that two replicas send at a time, some blocks of `wire`; None for all.
    """
    if replicas == 2:
        pieces = jnp.split(array, list(range(piece, array.size, piece))) if piece else [array]
        sent = [lax.all_gather(wire.encode(each), jd.REPLICA_AXIS) for each in pieces]
        return jnp.concatenate([_added(rows, replicas, wire) for rows in sent])
    rows = _padded(array, replicas * wire.block).reshape(replicas, -1)
    # Row by row what the replicas have for this one's piece.
    arrived = lax.all_to_all(wire.encode(rows), jd.REPLICA_AXIS, 0, 0, tiled=True)
    sums = lax.all_gather(wire.encode(_added(arrived, replicas, wire)), jd.REPLICA_AXIS)
    return wire.decode(sums).reshape(-1)[: array.size]


def _added(rows: Array, replicas: int, wire: Format) -> Array:
    """The sum of the rows in float32, from the first to the last: the order must not depend on who adds up."""

    def plus(row: Any, total: Array) -> Array:
        return total + wire.decode(rows[row])

    first = wire.decode(rows[0])
    if replicas > WRITTEN_OUT:  # many replicas would make a long program
        return lax.fori_loop(1, replicas, plus, first)
    for row in range(1, replicas):
        first = plus(row, first)
    return first


points.WIRES.register(WireSum)
