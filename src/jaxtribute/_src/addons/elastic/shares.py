"""Batches of islands that train alone: each takes its replicas' rows, and it is known how many a step has seen."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import jax

from jaxtribute import DistributedDataset, DistributedIterator
from jaxtribute._src.addons.elastic.dataset import ElasticIterator
from jaxtribute.extending import BatchPlacer, Shard, as_batch, slice_sizes
from jaxtribute.typing import Nest

if TYPE_CHECKING:
    from jaxtribute._src.addons.elastic.local import LocalMesh


NOT_ITS_OWN = -1
"""In place of the number of examples: the batch has one, so that there is a shape, and nothing of it may stay."""


class Rows:
    """The numbers of examples in batches, by their arrays."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int, int]] = {}
        self._batches = 0

    def note(self, batch: Nest, rows: int) -> None:
        """Takes note of a batch that lies on the island's devices."""
        self._batches += 1
        for leaf in jax.tree.leaves(batch):
            key = id(leaf)
            gone = weakref.ref(leaf, lambda _, key=key: self._known.pop(key, None))
            self._known[key] = gone, self._batches, rows

    def within(self, arguments: Nest) -> int | None:
        """The number of examples in the batches among arguments; None if there is no batch."""
        found: dict[int, int] = {}
        for leaf in jax.tree.leaves(arguments):
            known = self._known.get(id(leaf))
            if known is not None and known[0]() is leaf:
                found[known[1]] = known[2]
        return sum(found.values()) if found else None


class LocalDataset:
    """A dataset of which every island reads all batches and takes its rows; see `ElasticStrategy`.

    Args:
      dataset: the dataset as it lies on the host.
      mesh: this island's devices, and the others.
    """

    def __init__(self, dataset: DistributedDataset[Any], mesh: LocalMesh) -> None:
        self._dataset, self._mesh = dataset, mesh
        self._place = BatchPlacer(mesh, Shard(1, 0, mesh.size), compiled=False)

    def __iter__(self) -> LocalIterator:
        return LocalIterator(iter(self._dataset), self._mesh, self._place)


class LocalIterator(ElasticIterator):
    """One pass over a `LocalDataset`.

    Args:
      batches: those of all islands, on the host.
      mesh: this island's devices, and the others.
      place: puts this island's rows on its devices.
    """

    def __init__(self, batches: DistributedIterator[Any], mesh: LocalMesh, place: BatchPlacer) -> None:
        super().__init__(batches, mesh)
        self._local, self._place = mesh, place

    def _own(self, batch: Any) -> Any:
        whole = as_batch(batch)
        start, stop = self._local.share(whole.total or 0)
        placed, _ = self._place(jax.tree.map(lambda leaf: leaf[start:stop], whole.tree))
        self._local.rows.note(placed, stop - start)
        return placed


def bounds(total: int, replicas: list[tuple[int, int]], rank: int) -> tuple[int, int]:
    """The rows of a batch of `total` that are those of an island's replicas.

    Args:
      total: rows of the batch.
      replicas: the islands' ranks, and how many replicas each has.
      rank: the island; one that is not there is shown the first's.
    """
    sizes = slice_sizes(total, sum(count for _, count in replicas))
    first = 0
    for other, count in replicas:
        if other == rank or rank not in dict(replicas):
            return sum(sizes[:first]), sum(sizes[: first + count])
        first += count
    raise AssertionError(rank)
