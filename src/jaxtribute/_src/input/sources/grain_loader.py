"""`grain.DataLoader`."""

from __future__ import annotations

import json
from typing import Any

import grain

from jaxtribute._src.input import grain_inside as inside
from jaxtribute._src.input.batches import Batch, as_batch
from jaxtribute._src.input.sources.base import Source, register
from jaxtribute._src.input.splitting import Shard
from jaxtribute.errors import InputError


class LoaderSource(Source):
    """A Grain data loader. Its position is what its iterator says."""

    name = "grain.DataLoader"

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def open(self, shard: Shard) -> _LoaderStream:
        """Starts a pass."""
        shards = inside.loader_shards(self._loader)
        if shard.workers > 1 and shards > 1:
            raise InputError(
                f"this DataLoader reads one of {shards} shards already, and its batches would be shared out among "
                f"{shard.workers} workers once more. HINT: give it grain.sharding.NoSharding(), or distribute it with "
                "AutoShardPolicy.OFF."
            )
        return _LoaderStream(iter(self._loader))


class _LoaderStream:
    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __next__(self) -> Batch:
        return as_batch(next(self._iterator))

    def get_state(self) -> Any:
        """The position."""
        return json.loads(self._iterator.get_state())

    def set_state(self, state: Any) -> None:
        """Goes to a position."""
        self._iterator.set_state(json.dumps(state).encode())

    def close(self) -> None:
        """Closes what is read from."""
        inside.close_loader(self._iterator)


register("grain.DataLoader", lambda dataset: isinstance(dataset, grain.DataLoader), LoaderSource)
