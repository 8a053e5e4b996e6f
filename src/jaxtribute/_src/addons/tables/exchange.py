"""The exchange of ids and rows between replicas: each asks the others for the rows that it needs, and gets them.

The first message to each other replica has numbers of rows, and the most rows that its sender asks of any. So all know
the size of the messages of rows that follow: the smallest of a few sizes that has room for these. What does not fit in
the largest follows in a further round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxtribute as jd
from jaxtribute.extending import Programs

if TYPE_CHECKING:
    from jaxtribute._src.addons.tables.stacking import Stack

SIZES = tuple(0.75**power for power in range(5))
"""Sizes of messages of rows, as parts of what equally spread ids need if none comes twice: each is a collective of its
own in the program, of which a step runs one. More of them waste less, and take longer to compile."""


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


class Exchange:
    """The way between the replicas for some distinct places, in one replica's program.

    Args:
      table: the places of the rows of tables.
      places: of shape `(n,)`: the places, in order, each once; `table.stored` for none.
    """

    def __init__(self, table: Stack, places: jax.Array) -> None:
        self._table, self._places = table, places
        self._size = -(-places.shape[0] // table.replicas)
        self._sizes = sorted({math.ceil(self._size * part) for part in SIZES})
        first = np.arange(table.replicas + 1, dtype=np.int32) * np.int32(table.part)
        self._starts = jnp.searchsorted(places, jnp.asarray(first)).astype(np.int32)
        most = jnp.max(self._starts[1:] - self._starts[:-1])
        heads = jnp.broadcast_to(most, (table.replicas, 1))
        answer = _swap(jnp.concatenate([heads, self._numbers(np.int32(0))], axis=1))
        # Of what all have sent: all replicas take as many rounds.
        self._longest = Programs.equal(jnp.max(answer[:, 0]))
        self._rounds = (self._longest + np.int32(self._size - 1)) // np.int32(self._size)
        # There are as many rounds as replicas if all places are on one.
        numbers = jnp.zeros((table.replicas, table.replicas, self._size), np.int32).at[0].set(answer[:, 1:])

        def further(number: Any, numbers: jax.Array) -> jax.Array:
            return numbers.at[number].set(_swap(self._numbers(number)))

        numbers = lax.fori_loop(np.int32(1), self._rounds, further, numbers)
        self.given = jnp.where(numbers == np.int32(0), np.int32(table.part), numbers - np.int32(1))
        """The places in this replica's part that others ask for, `part` for none: by round, by who asks, by number."""

    def _asked(self, number: Any) -> jax.Array:
        """The indices, among the places, of those that a round asks of each replica; `n` for none."""
        asked = self._starts[:-1, None] + number * np.int32(self._size) + lax.iota(np.int32, self._size)[None]
        return jnp.where(asked < self._starts[1:, None], asked, np.int32(self._places.shape[0]))

    def _numbers(self, number: Any) -> jax.Array:
        """One more than the places of a round in each replica's part; 0, as in padding, for none."""
        places = self._places.at[self._asked(number)].get(mode="fill", fill_value=self._table.stored)
        first = lax.iota(np.int32, self._table.replicas)[:, None] * np.int32(self._table.part)
        return jnp.where(places == np.int32(self._table.stored), np.int32(0), places - first + np.int32(1))

    def _swapped(self, rows: jax.Array, number: Any) -> jax.Array:
        """Gives this replica the rows that each has for it in a round, of those that each has for every other."""

        def swap(size: int, rows: jax.Array) -> jax.Array:
            return jnp.pad(_swap(rows[:, :size]), [(0, 0), (0, self._size - size), (0, 0)])

        left = self._longest - number * np.int32(self._size)
        chosen = jnp.sum(left > np.asarray(self._sizes[:-1], np.int32), dtype=np.int32)
        return lax.switch(chosen, [partial(swap, size) for size in self._sizes], rows)

    def fetched(self, read: Callable[[jax.Array], jax.Array], row: jax.ShapeDtypeStruct) -> jax.Array:
        """The rows at the places, of shape `(n, width)`, from the replicas' parts; zeros for none.

        Args:
          read: gives the rows at places of this replica's part.
          row: the shape and dtype of a row.
        """

        def turn(number: Any, rows: jax.Array) -> jax.Array:
            given = self.given[number]
            back = self._swapped(read(given.reshape(-1)).reshape(*given.shape, *row.shape), number)
            return rows.at[self._asked(number)].set(back, mode="drop")

        rows = jnp.zeros((self._places.shape[0], *row.shape), row.dtype)
        return lax.fori_loop(np.int32(0), self._rounds, turn, rows)

    def handed_over(self, rows: jax.Array) -> jax.Array:
        """The rows that the replicas have for the places `given` of this one's part.

        Args:
          rows: this replica's rows for its places, of shape `(n, width)`.
        """

        def turn(number: Any, held: jax.Array) -> jax.Array:
            sent = rows.at[self._asked(number)].get(mode="fill", fill_value=0)
            return held.at[number].set(self._swapped(sent, number))

        held = jnp.zeros((*self.given.shape, rows.shape[1]), rows.dtype)
        return lax.fori_loop(np.int32(0), self._rounds, turn, held)


def _swap(value: jax.Array) -> jax.Array:
    """The part that each replica has for this one, of those that each has for every other along axis 0."""
    return lax.all_to_all(value, jd.REPLICA_AXIS, 0, 0, tiled=True)
