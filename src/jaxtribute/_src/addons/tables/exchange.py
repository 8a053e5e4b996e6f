"""The exchange of ids and rows between replicas: each asks the others for the rows that it needs, and gets them.

Messages have one of a few sizes: some rows from each replica to each other one. The replicas agree on the smallest that
has room for the most that one has to send to another; what does not fit in the largest follows in a further round.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxtribute as jd

if TYPE_CHECKING:
    from jaxtribute._src.addons.tables.rows import Places
    from jaxtribute._src.addons.tables.stacking import Stack

SIZES = 8
"""Sizes of messages, up to what equally spread ids need if none comes twice: each is a collective of its own in the
program, of which a step runs one. More of them waste less, and take longer to compile."""


class Unique(NamedTuple):
    """The distinct places among many, in order.

    Attributes:
      places: of shape `(n,)`: the places, then `Places.stored` as often as there are fewer.
      inverse: for each of the many the index of its place in `places`.
    """

    places: jax.Array
    inverse: jax.Array


def unique(places: jax.Array, stored: int) -> Unique:
    """Finds the distinct ones among `places`, of shape `(n,)`; those that are `stored` come last."""
    count = places.shape[0]
    ordered, order = lax.sort([places, lax.iota(np.int32, count)], num_keys=1)
    fresh = jnp.concatenate([jnp.zeros(1, np.int32), (ordered[1:] != ordered[:-1]).astype(np.int32)])
    slots = jnp.cumsum(fresh, dtype=np.int32)
    distinct = jnp.full(count, stored, np.int32).at[slots].set(ordered, indices_are_sorted=True)
    return Unique(distinct, jnp.zeros(count, np.int32).at[order].set(slots, unique_indices=True))


def summed(places: jax.Array, rows: jax.Array, stored: int) -> tuple[jax.Array, jax.Array]:
    """The distinct places, in order, and the sums of the rows at each."""
    found = unique(places, stored)
    return found.places, jnp.zeros_like(rows).at[found.inverse].add(rows)


class _Round(NamedTuple):
    """One replica's part of a round.

    Attributes:
      asked: of shape `(replicas, size)`: the indices, among the places, of those that are on each replica.
      numbers: of the same shape: one more than the places in the replica's part; 0, as in padding, for none.
    """

    asked: jax.Array
    numbers: jax.Array


class Exchange:
    """The way between the replicas for some distinct places, in one replica's program.

    Args:
      table: the places of the rows, of one table or of several.
      places: of shape `(n,)`: the places, in order, each once; `table.stored` for none.
    """

    def __init__(self, table: Places | Stack, places: jax.Array) -> None:
        self._table, self._places = table, places
        self._size = -(-places.shape[0] // table.replicas)
        self._sizes = sorted({-(-self._size * number // SIZES) for number in range(1, SIZES + 1)})
        first = np.arange(table.replicas + 1, dtype=np.int32) * np.int32(table.part)
        self._starts = jnp.searchsorted(places, jnp.asarray(first)).astype(np.int32)
        self._longest = lax.pmax(jnp.max(self._starts[1:] - self._starts[:-1]), jd.REPLICA_AXIS)
        self._rounds = (self._longest + np.int32(self._size - 1)) // np.int32(self._size)

    def _round(self, number: Any) -> _Round:
        replicas = self._table.replicas
        asked = self._starts[:-1, None] + number * np.int32(self._size) + lax.iota(np.int32, self._size)[None]
        within = asked < self._starts[1:, None]
        asked = jnp.where(within, asked, np.int32(self._places.shape[0]))
        owner = lax.broadcasted_iota(np.int32, (replicas, self._size), 0)
        places = self._places.at[asked].get(mode="fill", fill_value=self._table.stored)
        local = places - owner * np.int32(self._table.part)
        return _Round(asked, jnp.where(within, local + np.int32(1), np.int32(0)))

    def _placed(self, numbers: jax.Array) -> jax.Array:
        """The places of numbers, `part` for none."""
        return jnp.where(numbers == np.int32(0), np.int32(self._table.part), numbers - np.int32(1))

    def _swapped(self, value: jax.Array, number: Any) -> jax.Array:
        """Gives this replica what each has for it in a round, of what each has for every other along axis 0."""

        def swap(size: int, value: jax.Array) -> jax.Array:
            sent = lax.all_to_all(value[:, :size], jd.REPLICA_AXIS, 0, 0, tiled=True)
            more = [(0, 0), (0, self._size - size), *[(0, 0)] * (value.ndim - 2)]
            return jnp.pad(sent, more)

        left = self._longest - number * np.int32(self._size)
        chosen = jnp.sum(left > np.asarray(self._sizes[:-1], np.int32), dtype=np.int32)
        return lax.switch(chosen, [partial(swap, size) for size in self._sizes], value)

    def fetched(self, read: Callable[[jax.Array], jax.Array], row: jax.ShapeDtypeStruct) -> jax.Array:
        """The rows at the places, of shape `(n, ...)`, from the replicas' parts; zeros for none.

        Args:
          read: gives the rows at places of this replica's part.
          row: the shape and dtype of a row.
        """
        rows = jnp.zeros((self._places.shape[0], *row.shape), row.dtype)

        def turn(number: Any, rows: jax.Array) -> jax.Array:
            asked, numbers = self._round(number)
            given = self._placed(self._swapped(numbers, number))
            back = self._swapped(read(given.reshape(-1)).reshape(*given.shape, *row.shape), number)
            return rows.at[asked].set(back, mode="drop")

        return lax.fori_loop(np.int32(0), self._rounds, turn, rows)

    def handed_over(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The rows that the replicas have for this one's part: their places in it, `part` for none, and the rows.

        Args:
          rows: this replica's rows for its places, of shape `(n, width)`.
        """
        step = self._table.replicas * self._size
        # There are as many rounds as replicas if all places are on one.
        places = jnp.full(self._table.replicas * step, self._table.part, np.int32)
        whole = jnp.zeros((self._table.replicas * step, rows.shape[1]), rows.dtype)

        def turn(number: Any, held: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            asked, numbers = self._round(number)
            packed = _packed(numbers, rows.at[asked].get(mode="fill", fill_value=0))
            given, sent = _unpacked(self._swapped(packed, number), rows.dtype)
            start = number * np.int32(step)
            return (
                lax.dynamic_update_slice_in_dim(held[0], self._placed(given).reshape(step), start, 0),
                lax.dynamic_update_slice_in_dim(held[1], sent.reshape(step, rows.shape[1]), start, 0),
            )

        return lax.fori_loop(np.int32(0), self._rounds, turn, (places, whole))


def _packed(numbers: jax.Array, rows: jax.Array) -> jax.Array:
    """Rows with their numbers before them, as bits: to begin a collective takes longer than to send them."""
    bits = np.dtype(f"uint{8 * rows.dtype.itemsize}")
    heads = numbers.astype(bits) if bits.itemsize > 4 else lax.bitcast_convert_type(numbers, bits)
    heads = heads.reshape(*numbers.shape, -1)
    return jnp.concatenate([heads, lax.bitcast_convert_type(rows, bits)], axis=-1)


def _unpacked(packed: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """The inverse of `_packed`, for rows of a type."""
    count = max(1, 4 // packed.dtype.itemsize)
    heads = packed[..., 0] if count == 1 else packed[..., :count]
    numbers = heads.astype(np.int32) if packed.dtype.itemsize > 4 else lax.bitcast_convert_type(heads, np.int32)
    return numbers, lax.bitcast_convert_type(packed[..., count:], dtype)
