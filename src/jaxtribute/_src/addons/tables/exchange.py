"""The exchange of ids and rows between replicas: each asks the others for the rows that it needs, and gets them.

An exchange has a fixed size: some rows from each replica to each other one. What does not fit follows in a further
round; the replicas agree on how many rounds there are, as many as the one needs that has the most to send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxtribute as jd
from jaxtribute._src.addons.tables.rows import Places

ROUNDS = 4
"""Rounds that equally spread ids would need if none came twice: smaller messages waste less where many ids do."""


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
      asked: of shape `(replicas, size)`: the indices, among the places, of those that are sent to each replica.
      given: of the same shape: the places in this replica's part that each replica asks for; `part` for none.
    """

    asked: jax.Array
    given: jax.Array


class Exchange:
    """The way between the replicas for some distinct places, in one replica's program.

    Args:
      table: the places of the table's rows.
      places: of shape `(n,)`: the places, in order, each once; `table.stored` for none.
    """

    def __init__(self, table: Places, places: jax.Array) -> None:
        self._table, self._places = table, places
        count = places.shape[0]
        self._size = max(1, -(-count // (table.replicas * ROUNDS)))
        first = np.arange(table.replicas + 1, dtype=np.int32) * np.int32(table.part)
        self._starts = jnp.searchsorted(places, jnp.asarray(first)).astype(np.int32)
        self.most = -(-count // self._size)
        """The number of rounds if all places are on one replica."""
        longest = jnp.max(self._starts[1:] - self._starts[:-1])
        self._rounds = lax.pmax((longest + np.int32(self._size - 1)) // np.int32(self._size), jd.REPLICA_AXIS)

    def _round(self, number: Any) -> _Round:
        replicas = self._table.replicas
        asked = self._starts[:-1, None] + number * np.int32(self._size) + lax.iota(np.int32, self._size)[None]
        within = asked < self._starts[1:, None]
        asked = jnp.where(within, asked, np.int32(self._places.shape[0]))
        owner = lax.broadcasted_iota(np.int32, (replicas, self._size), 0)
        places = self._places.at[asked].get(mode="fill", fill_value=self._table.stored)
        local = jnp.where(within, places - owner * np.int32(self._table.part), np.int32(self._table.part))
        return _Round(asked, _swapped(local))

    def fetched(self, read: Callable[[jax.Array], jax.Array], row: jax.ShapeDtypeStruct) -> jax.Array:
        """The rows at the places, of shape `(n, ...)`, from the replicas' parts; zeros for none.

        Args:
          read: gives the rows at places of this replica's part.
          row: the shape and dtype of a row.
        """
        rows = jnp.zeros((self._places.shape[0], *row.shape), row.dtype)

        def turn(number: Any, rows: jax.Array) -> jax.Array:
            asked, given = self._round(number)
            back = _swapped(read(given.reshape(-1)).reshape(*given.shape, *row.shape))
            return rows.at[asked].set(back, mode="drop")

        return lax.fori_loop(np.int32(0), self._rounds, turn, rows)

    def handed_over(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The rows that the replicas have for this one's part: their places in it, `part` for none, and the rows.

        Args:
          rows: this replica's rows for its places, of shape `(n, ...)`.
        """
        step = self._table.replicas * self._size
        places = jnp.full(self.most * step, self._table.part, np.int32)
        whole = jnp.zeros((self.most * step, *rows.shape[1:]), rows.dtype)

        def turn(number: Any, held: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            asked, given = self._round(number)
            sent = _swapped(rows.at[asked].get(mode="fill", fill_value=0))
            start = number * np.int32(step)
            return (
                lax.dynamic_update_slice_in_dim(held[0], given.reshape(step), start, 0),
                lax.dynamic_update_slice_in_dim(held[1], sent.reshape(step, *rows.shape[1:]), start, 0),
            )

        return lax.fori_loop(np.int32(0), self._rounds, turn, (places, whole))


def _swapped(value: jax.Array) -> jax.Array:
    """Gives this replica what each has for it, of what each has for every other along axis 0."""
    return lax.all_to_all(value, jd.REPLICA_AXIS, 0, 0, tiled=True)
