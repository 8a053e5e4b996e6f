"""Batches that every island reads whole, and takes its rows of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from jaxtribute import DistributedDataset, DistributedIterator
from jaxtribute._src.addons.elastic.runtime import IslandMesh
from jaxtribute.errors import TraceError
from jaxtribute.extending import Context, Kinds


class ElasticDataset:
    """A dataset of which every island reads all batches; made by `ElasticStrategy.experimental_distribute_dataset`.

    Args:
      dataset: the dataset as one replica alone would read it.
      mesh: this island's device, and the others.
    """

    def __init__(self, dataset: DistributedDataset[Any], mesh: IslandMesh) -> None:
        self._dataset, self._mesh = dataset, mesh

    def __iter__(self) -> ElasticIterator:
        return ElasticIterator(iter(self._dataset), self._mesh)


class ElasticIterator(Iterator[Any]):
    """One pass over an `ElasticDataset`."""

    def __init__(self, batches: DistributedIterator[Any], mesh: IslandMesh) -> None:
        self._batches, self._mesh = batches, mesh

    def __next__(self) -> Any:
        """Returns the next batch: a tree of `PerReplica` values."""
        if Context.current().executor.traced:
            raise TraceError(
                "next(iterator) in a jd.function: ElasticStrategy does not draw batches within programs yet. HINT: "
                "pass the batch as an argument."
            )
        # One event, of what the program is given: the iterator within tells of none.
        with Kinds.INPUT.during(self, "") as event:
            event.result = own = self._own(next(self._batches))
        return own

    def _own(self, batch: Any) -> Any:
        """The island's part of a batch, as replicas are given it."""
        return jax.tree.map(self._mesh.whole, batch)

    def get_state(self) -> dict[str, Any]:
        """Returns the position after the last batch that was handed out, the same on all islands."""
        return self._batches.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position; see `jd.DistributedIterator.set_state`."""
        self._batches.set_state(state)

    def close(self) -> None:
        """Ends the iterator and its thread."""
        self._batches.close()
