"""`grain.IterDataset` and `grain.DataLoader`: sequential, with a position that Grain itself saves."""

from __future__ import annotations

import json
from typing import Any

import grain

from jaxtribute._src.core.input import grain_files, grain_tree
from jaxtribute._src.core.input import grain_internals as internals
from jaxtribute._src.core.input.batches import Batch, as_batch
from jaxtribute._src.core.input.grain_batches import for_worker
from jaxtribute._src.core.input.grain_internals import Node
from jaxtribute._src.core.input.sources import register_source
from jaxtribute._src.core.input.sources.base import Source
from jaxtribute._src.core.input.sources.grain_map import MapSource
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.types import Foreign, Json
from jaxtribute.errors import InputError


class IterSource(Source):
    """A sequential Grain dataset. Its position is what Grain's iterator says."""

    name = "grain.IterDataset"

    def __init__(self, dataset: Node) -> None:
        self._dataset = dataset

    def open(self, shard: Shard) -> GrainStream:
        """Starts a pass; a worker reads all of it, and its share is cut from each batch."""
        return GrainStream(iter(self._dataset))

    def static_rows(self) -> bool:
        """True if the pipeline drops its remainder."""
        stacking = grain_tree.stacking(self._dataset)
        return stacking is not None and stacking.drops_remainder

    def batch_size(self) -> int | None:
        stacking = grain_tree.stacking(self._dataset)
        return None if stacking is None else stacking.size

    def files(self) -> tuple[str, ...]:
        return grain_files.files(self._dataset)

    def by_file(self, shard: Shard) -> Source:
        return IterSource(grain_files.keep(self._dataset, shard))

    def by_hint(self, shard: Shard) -> Source:
        return IterSource(grain_files.at_hint(self._dataset, shard))


class GrainStream:
    """A Grain iterator."""

    def __init__(self, iterator: Foreign) -> None:
        self._iterator = iterator

    def __next__(self) -> Batch:
        return as_batch(next(self._iterator))

    def get_state(self) -> Any:
        """The position."""
        return self._iterator.get_state()

    def set_state(self, state: Json) -> None:
        """Goes to a position."""
        self._iterator.set_state(state)

    def close(self) -> None:
        """Closes what is read from."""
        self._iterator.close()


def make(dataset: Node) -> Source:
    """Reads a dataset by whole batches if it is one over arrays that only batches sequentially."""
    mapped = grain_tree.as_map_dataset(dataset)
    if isinstance(mapped, grain.MapDataset) and for_worker(mapped, Shard())[1] == "arrays":
        return MapSource(mapped)
    return IterSource(dataset)


register_source("grain.IterDataset", lambda dataset: isinstance(dataset, grain.IterDataset), make)


class LoaderSource(Source):
    """A Grain data loader. Its position is what its iterator says."""

    name = "grain.DataLoader"

    def __init__(self, loader: Foreign) -> None:
        self._loader = loader

    def open(self, shard: Shard) -> _LoaderStream:
        shards = internals.loader_shards(self._loader)
        if shard.workers > 1 and shards > 1:
            raise InputError(
                f"this DataLoader reads one of {shards} shards already, and its batches would be shared out among "
                f"{shard.workers} workers once more. HINT: give it grain.sharding.NoSharding(), or distribute it with "
                "AutoShardPolicy.OFF."
            )
        return _LoaderStream(iter(self._loader))


class _LoaderStream(GrainStream):
    """A Grain loader's iterator, which gives its position as JSON in bytes."""

    def get_state(self) -> Any:
        return json.loads(self._iterator.get_state())

    def set_state(self, state: Json) -> None:
        self._iterator.set_state(json.dumps(state).encode())

    def close(self) -> None:
        internals.close_loader(self._iterator)


register_source("grain.DataLoader", lambda dataset: isinstance(dataset, grain.DataLoader), LoaderSource)
