"""The lengths of what replicas gather: of rows those of the others' shares of the batch, which each must know."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from jaxtribute._src.addons.elastic.runtime import IslandMesh
from jaxtribute.extending import Gathers, Tracer

Lengths = Callable[[int], Sequence[int]]
"""Gives the lengths on all replicas of an array that they gather, of this one's own."""
Shapes = Callable[[int, Lengths], None]
"""Traces the program of a replica, by its number, for the lengths that it asks about."""


def lengths_for(mesh: IslandMesh, sizes: Sequence[Sequence[int]], place: int, shapes: Shapes | None) -> Lengths:
    """The function that gives the lengths for a replica.

    Args:
      mesh: the island's.
      sizes: for each batch the numbers of rows that the replicas have.
      place: the replica's number.
      shapes: traces the program of any replica; None for a step that runs as Python, where the islands tell each other.
    """
    count = mesh.count_in(mesh.view)
    # One that is divided evenly comes last: what is gathered are mostly rows of the other.
    uneven = [each for each in sizes if len(set(each)) > 1]
    if not uneven:
        return lambda own: (own,) * count
    if shapes is None:
        return lambda own: _told(mesh, uneven[0], place, own)
    found: list[Gathers] = []

    def traced(own: int) -> Sequence[int]:
        if not found:
            found.append(Gathers(place, uneven[0], _settled(list(zip(*sizes, strict=True)), uneven[0], shapes)))
        return found[0].lengths(own)

    return traced


def _told(mesh: IslandMesh, rows: Sequence[int], place: int, own: int) -> Sequence[int]:
    """The lengths that the islands tell each other."""
    told = np.where(np.arange(len(rows)) == place, np.int32(own), np.int32(0))
    (lengths,) = mesh.total([jnp.asarray(told)], "the lengths of a gather")
    # Within a function that JAX keeps islands cannot be asked: it is not traced at the same step by all.
    return Gathers(place, rows, []).lengths(own) if isinstance(lengths, Tracer) else lengths.tolist()


def _settled(kinds: Sequence[tuple[int, ...]], rows: Sequence[int], shapes: Shapes) -> list[tuple[int, ...]]:
    """For each array that is gathered its lengths on all replicas; those of other rows are traced apart.

    Args:
      kinds: each replica's rows of the batches.
      rows: those of the batch whose rows are mostly gathered.
      shapes: traces the program of a replica.
    """
    classes = list(dict.fromkeys(kinds))

    def trace(replica: int, ledger: Gathers) -> list[tuple[int, ...]]:
        shapes(replica, ledger.lengths)
        return ledger.taken

    traces = Gathers.settled(
        trace, [kinds.index(kind) for kind in classes], list(map(classes.index, kinds)), rows, Exception
    )
    return min(traces, key=len)
