"""Several tables of one width in one exchange, as if their rows were those of one table."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import is_
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxtribute as jd
from jaxtribute._src.addons.tables.exchange import Exchange, summed, unique
from jaxtribute._src.addons.tables.rows import Places

if TYPE_CHECKING:
    from jaxtribute import IndexedSlices
    from jaxtribute._src.addons.tables.updates import Reduction

_MOST = 2**31 - 1
"""Places are numbers of 32 bits."""


@dataclass(frozen=True)
class Stack:
    """The places of several tables: a replica's part has its part of each behind each other.

    Attributes:
      tables: the places of each table.
    """

    tables: tuple[Places, ...]

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return self.tables[0].replicas

    @cached_property
    def starts(self) -> list[int]:
        """The places in a part where the tables begin, and the end."""
        return [0, *np.cumsum([one.part for one in self.tables]).tolist()]

    @property
    def part(self) -> int:
        """The number of rows of one replica's part."""
        return self.starts[-1]

    @property
    def stored(self) -> int:
        """The number of rows of all parts."""
        return self.part * self.replicas

    def of_table(self, number: int, places: jax.Array) -> jax.Array:
        """The places here of places of a table; `stored` for none."""
        table = self.tables[number]
        part = np.int32(table.part)
        here = places // part * np.int32(self.part) + np.int32(self.starts[number]) + places % part
        return jnp.where(places == np.int32(table.stored), np.int32(self.stored), here)

    def in_table(self, number: int, local: jax.Array) -> jax.Array:
        """The places in a replica's part of a table of places in its part here; the table's `part` for others."""
        start, end = map(np.int32, self.starts[number : number + 2])
        return jnp.where((local >= start) & (local < end), local - start, end - start)


def grouped(tables: Sequence[Any]) -> list[list[int]]:
    """The numbers of the tables that can share an exchange, by name: of one width, type and set of replicas."""
    groups: dict[Any, list[int]] = {}
    for number, table in sorted(enumerate(tables), key=lambda pair: pair[1].name):
        groups.setdefault((table.shape[1:], table.dtype, table.policy.mesh), []).append(number)
    found: list[list[int]] = []
    for group in groups.values():
        whole = sum(tables[number].policy.places.stored for number in group)
        found += [group] if whole < _MOST else [[number] for number in group]
    return found


class Route:
    """The way between the replicas for rows of tables that can share an exchange, in one replica's program.

    Args:
      policies: those of the tables, each once.
      places: this replica's places in each table.
      distinct: True if those of each table are in order, each once.
      gathers: an executor's, if the replicas' numbers of places may differ.
    """

    def __init__(
        self, policies: Sequence[Any], places: Sequence[jax.Array], *, distinct: bool, gathers: Any = None
    ) -> None:
        self.policies = list(policies)
        self.stack = Stack(tuple(policy.places for policy in policies))
        self._counts = [one.shape[0] for one in places]
        self.counts = [count if gathers is None else max(count, *gathers.lengths(count)) for count in self._counts]
        """For each table the most places of a replica: with as many of each, all make the same exchange."""
        padded = [
            jnp.pad(one, (0, most - one.shape[0]), constant_values=policy.places.stored)
            for one, most, policy in zip(places, self.counts, policies, strict=True)
        ]
        here = jnp.concatenate([self.stack.of_table(number, own) for number, own in enumerate(padded)])
        self._inverse: jax.Array | None = None
        """For each of the places the index of its row; None if they are all distinct, and in order."""
        if not distinct or len(places) > 1:
            here, self._inverse = unique(here, self.stack.stored)
        self._exchange = Exchange(self.stack, here)

    def rows(self, arrays: Sequence[Any]) -> list[jax.Array]:
        """The rows at the places of each table.

        Args:
          arrays: what the policies read rows from.
        """

        def read(local: jax.Array) -> jax.Array:
            rows = [
                policy.rows(own, self.stack.in_table(number, local))
                for number, (policy, own) in enumerate(zip(self.policies, arrays, strict=True))
            ]
            # Of all but one they are zeros.
            return reduce(jnp.add, rows)

        table = arrays[0][0]
        rows = self._exchange.fetched(read, jax.ShapeDtypeStruct(table.shape[1:], table.dtype))
        parts = jnp.split(rows if self._inverse is None else rows[self._inverse], np.cumsum(self.counts)[:-1])
        return [part[:count] for part, count in zip(parts, self._counts, strict=True)]

    def handed_over(self, rows: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
        """The places in this replica's part that any replica has rows for, in order, each once; and the sums of these.

        Args:
          rows: this replica's rows for its places in each table.
        """
        padded = [jnp.pad(one, [(0, most - len(one)), (0, 0)]) for one, most in zip(rows, self.counts, strict=True)]
        own = jnp.concatenate(padded)
        if self._inverse is not None:
            own = jnp.zeros_like(own).at[self._inverse].add(own)
        given, rows_given = self._exchange.given, self._exchange.handed_over(own)
        return summed(given.reshape(-1), rows_given.reshape(-1, own.shape[1]), self.stack.part)


class Routes:
    """The ways of lookups, by which gradients go back, for as long as the executor is there that traced them."""

    def __init__(self) -> None:
        self._routes: weakref.WeakKeyDictionary[Any, list[tuple[Sequence[Any], Route]]] = weakref.WeakKeyDictionary()

    def add(self, executor: Any, ids: Sequence[Any], route: Route) -> None:
        """Keeps the way for the distinct ids of each table."""
        self._routes.setdefault(executor, []).append((ids, route))

    def route(self, executor: Any, policies: Sequence[Any], ids: Sequence[Any]) -> Route | None:
        """The way of one lookup for these very arrays of ids; None if they are of several."""
        for known, route in self._routes.get(executor, []):
            if len(known) == len(ids) and all(map(is_, (*route.policies, *known), (*policies, *ids))):
                return route
        return None


ROUTES = Routes()


def touched(
    tables: Sequence[Any], rows: Sequence[IndexedSlices], reduction: Reduction, executor: Any
) -> list[tuple[Any, Any]]:
    """The rows of tables that a step changes, in one replica's part or in the whole.

    Args:
      tables: tables that can share an exchange, each once.
      rows: the gradients of each.
      reduction: the way in which the replicas' rows come together.
      executor: the executor in force.

    Returns:
      For each table the places in the part, each once and in order, with places behind its end that name none; and the
      gradients there, summed up over the replicas.
    """
    policies = [table.policy for table in tables]
    ids = [one.indices for one in rows]
    # Rows that do not count would be updated all the same.
    route = None if reduction.idle else ROUTES.route(executor, policies, ids)
    if route is None:
        own = [_own(table, one, reduction) for table, one in zip(tables, rows, strict=True)]
        if not reduction.local:
            pairs = [summed(*pair, policy.places.stored) for pair, policy in zip(own, policies, strict=True)]
            return [(where, reduction.finish(total)) for where, total in pairs]
        route = Route(policies, [where for where, _ in own], distinct=False, gathers=executor.gathers)
        values = [values for _, values in own]
    else:
        values = [jnp.asarray(one.values, table.dtype) for table, one in zip(tables, rows, strict=True)]
    places, total = route.handed_over(values)
    total = reduction.finish(total)
    if len(tables) == 1:
        return [(places, total)]
    found: list[tuple[Any, Any]] = []
    stack = route.stack
    for number, count in enumerate(route.counts):
        # They follow each other, as places are in order; there are no more than all replicas have.
        most = min(places.shape[0], count * stack.replicas)
        first = jnp.searchsorted(places, np.int32(stack.starts[number])).astype(np.int32)
        at = first + lax.iota(np.int32, most)
        local = stack.in_table(number, places.at[at].get(mode="fill", fill_value=stack.part))
        own_total = total.at[at].get(mode="fill", fill_value=0)
        # Behind a table's rows are those of the next one, which count for nothing in a norm of its gradients.
        is_own = local < np.int32(stack.tables[number].part)
        found.append((local, jnp.where(is_own[:, None], own_total, jnp.zeros_like(own_total))))
    return found


def _own(table: Any, rows: IndexedSlices, reduction: Reduction) -> tuple[jax.Array, jax.Array]:
    """The places of a replica's rows of a gradient, and the rows."""
    places = table.policy.places
    values = jnp.asarray(rows.values, table.dtype)
    ids = jnp.asarray(rows.indices)
    if not ids.shape[0]:
        # A program has no arrays of no rows to sort.
        ids, values = jnp.full(1, places.rows, np.int32), jnp.zeros((1, *values.shape[1:]), values.dtype)
    where = places.of_ids(ids)
    if reduction.local and reduction.idle:
        own_id = lax.axis_index(jd.REPLICA_AXIS)
        where = jnp.where(jnp.isin(own_id, np.asarray(reduction.idle, np.int32)), np.int32(places.stored), where)
    return where, values
