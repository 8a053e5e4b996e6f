"""`grain.IterDataset`: sequential, with a position that Grain itself saves."""

from __future__ import annotations

from typing import Any

import grain

from jaxtribute._src.input import grain_files, grain_tree
from jaxtribute._src.input.batches import Batch, as_batch
from jaxtribute._src.input.grain_batches import for_worker
from jaxtribute._src.input.sources.base import Source, register
from jaxtribute._src.input.sources.grain_map import MapSource
from jaxtribute._src.input.splitting import Shard


class IterSource(Source):
    """A sequential Grain dataset. Its position is what Grain's iterator says."""

    name = "grain.IterDataset"

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def open(self, shard: Shard) -> GrainStream:
        """Starts a pass; a worker reads all of it, and its share is cut from each batch."""
        del shard
        return GrainStream(iter(self._dataset))

    def static_rows(self) -> bool:
        """True if the pipeline drops its remainder."""
        found = grain_tree.stacking(self._dataset)
        return found is not None and found.drops_remainder

    def batch_size(self) -> int | None:
        """Examples in a full batch."""
        found = grain_tree.stacking(self._dataset)
        return None if found is None else found.size

    def files(self) -> tuple[str, ...]:
        """The files that the dataset reads."""
        return grain_files.files(self._dataset)

    def by_file(self, shard: Shard) -> Source:
        """The dataset over this worker's files."""
        return IterSource(grain_files.keep(self._dataset, shard))

    def by_hint(self, shard: Shard) -> Source:
        """The dataset with its mark replaced by this worker's share."""
        return IterSource(grain_files.at_hint(self._dataset, shard))


class GrainStream:
    """A Grain iterator."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __next__(self) -> Batch:
        return as_batch(next(self._iterator))

    def get_state(self) -> Any:
        """The position."""
        return self._iterator.get_state()

    def set_state(self, state: Any) -> None:
        """Goes to a position."""
        self._iterator.set_state(state)

    def close(self) -> None:
        """Closes what is read from."""
        self._iterator.close()


def make(dataset: Any) -> Source:
    """Reads a dataset by whole batches if it is one over arrays that only batches sequentially."""
    mapped = grain_tree.as_map_dataset(dataset)
    if isinstance(mapped, grain.MapDataset) and for_worker(mapped, Shard())[1] == "arrays":
        return MapSource(mapped)
    return IterSource(dataset)


register("grain.IterDataset", lambda dataset: isinstance(dataset, grain.IterDataset), make)
