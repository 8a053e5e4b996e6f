"""Several tables of one width in one exchange, as if their rows were those of one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
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
    """The numbers of the tables that can share an exchange: of one width, type and set of replicas."""
    groups: dict[Any, list[int]] = {}
    for number, table in enumerate(tables):
        groups.setdefault((table.shape[1:], table.dtype, table.policy.mesh), []).append(number)
    found: list[list[int]] = []
    for group in groups.values():
        whole = sum(tables[number].policy.places.stored for number in group)
        found += [group] if whole < _MOST else [[number] for number in group]
    return found


def rows_from_all(tables: Sequence[Any], arrays: Sequence[Any], places: Sequence[jax.Array]) -> list[jax.Array]:
    """The rows of tables that can share an exchange, for one replica's distinct places in each, in its program.

    Args:
      tables: the tables, of which some may be there more than once.
      arrays: what their policies read rows from.
      places: the places in each.
    """
    policies: list[Any] = [table.policy for table in tables]
    if len(tables) == 1:
        return [policies[0].rows_from_all(arrays[0], places[0])]
    numbers = {id(policy): number for number, policy in reversed(list(enumerate(policies)))}
    firsts = list(dict.fromkeys(numbers[id(policy)] for policy in policies))
    stack = Stack(tuple(policies[first].places for first in firsts))

    def read(local: jax.Array) -> jax.Array:
        rows = [policies[one].rows(arrays[one], stack.in_table(k, local)) for k, one in enumerate(firsts)]
        # Of all but one they are zeros.
        return reduce(jnp.add, rows)

    here = [
        stack.of_table(firsts.index(numbers[id(policy)]), own) for policy, own in zip(policies, places, strict=True)
    ]
    found = unique(jnp.concatenate(here), stack.stored)
    row = jax.ShapeDtypeStruct(tables[0].shape[1:], tables[0].dtype)
    rows = Exchange(stack, found.places).fetched(read, row)[found.inverse]
    return jnp.split(rows, np.cumsum([one.shape[0] for one in places])[:-1])


def touched(tables: Sequence[Any], rows: Sequence[IndexedSlices], reduction: Reduction) -> list[tuple[Any, Any]]:
    """The rows of tables that a step changes, in one replica's part or in the whole.

    Args:
      tables: tables that can share an exchange, each once.
      rows: the gradients of each.
      reduction: the way in which the replicas' rows come together.

    Returns:
      For each table the places in the part, each once and in order, with places behind its end that name none; and the
      gradients there, summed up over the replicas.
    """
    own = [_own(table, one, reduction) for table, one in zip(tables, rows, strict=True)]
    if not reduction.local:
        pairs = [summed(*pair, table.policy.places.stored) for pair, table in zip(own, tables, strict=True)]
        return [(where, reduction.finish(total)) for where, total in pairs]
    stack = Stack(tuple(table.policy.places for table in tables))
    here = jnp.concatenate([stack.of_table(number, where) for number, (where, _) in enumerate(own)])
    distinct, own_rows = summed(here, jnp.concatenate([values for _, values in own]), stack.stored)
    places, total = summed(*Exchange(stack, distinct).handed_over(own_rows), stack.part)
    total = reduction.finish(total)
    if len(tables) == 1:
        return [(places, total)]
    found: list[tuple[Any, Any]] = []
    for number, (where, _) in enumerate(own):
        # They follow each other, as places are in order; there are no more than all replicas have.
        most = min(places.shape[0], where.shape[0] * stack.replicas)
        first = jnp.searchsorted(places, np.int32(stack.starts[number])).astype(np.int32)
        at = first + lax.iota(np.int32, most)
        local = stack.in_table(number, places.at[at].get(mode="fill", fill_value=stack.part))
        values = total.at[at].get(mode="fill", fill_value=0)
        # Behind a table's rows are those of the next one, which count for nothing in a norm of its gradients.
        is_own = local < np.int32(stack.tables[number].part)
        found.append((local, jnp.where(is_own[:, None], values, jnp.zeros_like(values))))
    return found


def _own(table: Any, rows: IndexedSlices, reduction: Reduction) -> tuple[jax.Array, jax.Array]:
    """The places of a replica's rows of a gradient, and the rows."""
    places = table.policy.places
    values = jnp.asarray(rows.values, table.dtype)
    ids = jnp.asarray(rows.indices, np.int32)
    if not ids.shape[0]:
        # A program has no arrays of no rows to sort.
        ids, values = jnp.full(1, places.rows, np.int32), jnp.zeros((1, *values.shape[1:]), values.dtype)
    where = places.of_ids(ids)
    if reduction.local and reduction.idle:
        own_id = lax.axis_index(jd.REPLICA_AXIS)
        where = jnp.where(jnp.isin(own_id, np.asarray(reduction.idle, np.int32)), np.int32(places.stored), where)
    return where, values
