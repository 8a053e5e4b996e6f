"""Nests of what the replicas have each, from nests of distributed values, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import is_, itemgetter
from typing import Any

import jax
import numpy as np

from jaxtribute._src.core.execution.nests import flatten, is_array, is_number, is_whole, reveal
from jaxtribute._src.core.types import Nest, Numeric
from jaxtribute._src.core.values.agreement import agreed_places, all_signatures
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica, ReplicaValues
from jaxtribute._src.core.values.mesh import ReplicaMesh, unbound
from jaxtribute.errors import ContextError

Copies = dict[int, tuple[Any, Mirrored]]
"""Arrays on one device by their id, each with the mirrored value that it is a copy of."""


def components(
    nest: Nest, mesh: ReplicaMesh, remember: Callable[[Sequence[Any], Mirrored], None] | None = None
) -> list[Any]:
    """One nest a local replica, with its component of every value; `remember` is told the copies of mirrored ones."""
    leaves, tree = flatten(nest)
    replicas = range(len(mesh.local_ids))
    columns: list[Sequence[Any]] = []
    for leaf in leaves:
        if not isinstance(leaf, ReplicaValues):
            columns.append([leaf] * len(replicas))
            continue
        columns.append([movable(part, mesh) for part in leaf.values])
        if remember is not None and isinstance(leaf, Mirrored):
            remember(columns[-1], leaf)
    return [tree.unflatten(map(itemgetter(i), columns)) for i in replicas]


def movable(part: Numeric, mesh: ReplicaMesh) -> Any:
    """A replica's array such that it can meet arrays from around the function, which may lie anywhere.

    Not among several workers: they would not see that each puts another array in the same place.
    """
    return part if mesh.peers is not None else unbound(part)


def regroup(
    results: Sequence[Any],
    mesh: ReplicaMesh,
    *,
    always: bool = False,
    known: Copies | None = None,
    idle: tuple[int, ...] = (),
    agreeing: bool = False,
) -> Any:
    """Joins one nest a local replica into a nest of distributed values.

    What is the same object on all replicas stays as it is, unless `always`; arrays that are the copies of one
    mirrored value among `known` become that value again. No worker knows the objects of others: among several, arrays
    and numbers are each replica's own; with `agreeing` numbers stay as they are if all workers have the same.

    Raises:
      ContextError: the replicas' nests differ in structure.
    """
    for result in results:
        reveal(result, (jax.Array, np.ndarray))
    rows, trees = zip(*map(flatten, results), strict=True)
    if _odd_one(trees):  # None on one replica, and a value on another, are values as others
        as_values = partial(jax.tree.flatten, is_leaf=lambda node: node is None or is_whole(node))
        rows, trees = zip(*map(as_values, results), strict=True)
    if odd := _odd_one(trees):
        raise ContextError(
            f"replica 0 returned {trees[0]}, replica {odd} {trees[odd]}. "
            "HINT: the function must return the same structure on every replica."
        )
    leaves: list[Any] = []
    apart: dict[int, tuple[Any, ...]] = {}
    for place, column in enumerate(zip(*rows, strict=True)):
        leaf = APART if always else _shared_leaf(column, known or {}, mesh)
        leaves.append(leaf)
        if leaf is APART:
            apart[place] = column
    if agreeing and mesh.peers is not None:
        numbers = {place: column[0] for place, column in apart.items() if is_number(column[0]) and _is_one(column)}
        for place in agreed_places(numbers, mesh.peers):
            leaves[place] = apart.pop(place)[0]
    for place, value in zip(apart, join(list(apart.values()), mesh, idle), strict=True):
        leaves[place] = value
    return trees[0].unflatten(leaves)


def _odd_one(trees: Sequence[Any]) -> int:
    """The first replica whose result is structured otherwise than replica 0's; 0 if there is none."""
    for index, tree in enumerate(trees):
        if tree != trees[0]:
            return index
    return 0


APART = object()
"""Stands for a leaf of which every replica has its own."""


def _is_one(column: tuple[Any, ...]) -> bool:
    """True if all local replicas gave the same object."""
    return all(map(is_, column, repeat(column[0])))


def _shared_leaf(column: tuple[Any, ...], known: Copies, mesh: ReplicaMesh) -> Any:
    """The one value that all replicas gave, or `APART`."""
    first = column[0]
    # Other workers' numbers and arrays are not known here.
    if _is_one(column) and (mesh.peers is None or not (is_array(first) or is_number(first))):
        return first
    if isinstance(first, ReplicaValues):
        raise ContextError(
            f"a replica function returned {type(first).__name__}, a value of all replicas. "
            "HINT: return the replica's own arrays."
        )
    wholes = [known.get(id(value), (None, None))[1] for value in column]
    return wholes[0] if wholes[0] is not None and all(map(is_, wholes, repeat(wholes[0]))) else APART


def join(columns: Sequence[Sequence[Any]], mesh: ReplicaMesh, idle: tuple[int, ...]) -> list[PerReplica]:
    """The values of which each column holds the local replicas' components, in one exchange with other workers.

    Args:
      columns: one part a local replica for each value.
      mesh: the replicas' devices.
      idle: the replicas that had no data to compute their part from.
    """
    if not columns:
        return []
    # Workers ask each other for the shapes of all values at once: each question is a round through the coordination
    # service.
    signatures: Sequence[Any] = [None] * len(columns)
    if mesh.peers is not None:
        signatures = all_signatures(columns, "what the replicas gave", mesh)
    values = [PerReplica.from_parts(parts, mesh, known) for parts, known in zip(columns, signatures, strict=True)]
    for value in values:
        if not value.is_tuple:
            value.idle = idle
    return values
