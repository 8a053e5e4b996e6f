"""`grain.MapDataset`, and arrays, which become one: random access and a known length.

A dataset is read by whole batches where its transformations allow it.
"""

from __future__ import annotations

import sys
from copy import copy
from typing import Any

import grain
import jax
import numpy as np

from jaxtribute._src.core.input import grain_files, grain_tree
from jaxtribute._src.core.input.array_source import make_numpy_dataset
from jaxtribute._src.core.input.batches import Batch, as_batch
from jaxtribute._src.core.input.grain_batches import for_worker
from jaxtribute._src.core.input.grain_internals import Node, parents
from jaxtribute._src.core.input.sources import register_source
from jaxtribute._src.core.input.sources.base import Source, has_arrays_only
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.types import Json, Nest
from jaxtribute.errors import InputError

_READ_AHEAD = 32
"""Batches that Grain reads ahead. Its default of 500 suits records."""
_THREADS = 16
_ENDLESS = sys.maxsize // 2
"""Grain repeats without end by a length near the largest int."""
_THREADS_IN_MEMORY = 4
"""Threads that read batches. More than a few only contend for the interpreter if nothing waits for a disk."""


class MapSource(Source):
    """A Grain dataset with random access. Its position is the number of batches read.

    Args:
      dataset: a `grain.MapDataset`.
    """

    name = "grain.MapDataset"

    def __init__(self, dataset: Node) -> None:
        self._dataset = dataset
        self._epoch = 0
        node = grain_tree.outer_batch(dataset)
        self._batch = None if node is None else grain_tree.stacking(node)
        self._batches = 0 if node is None else len(node)
        self._records = 0 if node is None else len(parents(node)[0])
        self.reads = "all" if self._batch is None else "share"

    def open(self, shard: Shard) -> _IndexStream | _ThreadedStream:
        """Starts a pass."""
        dataset, how = for_worker(self._dataset, shard)
        if self._epoch:
            dataset = _Epoch(dataset, self._epoch)
        size = self.batch_size()
        return _IndexStream(dataset, size) if how == "arrays" else _ThreadedStream(dataset, size)

    def at_epoch(self, epoch: int) -> Source:
        """The dataset in the order that its shuffles have in a later epoch."""
        # What is repeated without end has one epoch only: numbers beyond it are too large for an int.
        endless = any(len(node) >= _ENDLESS for node in grain_tree.walk(self._dataset))
        later = copy(self)
        later._epoch = 0 if endless else epoch
        return later

    def static_rows(self) -> bool:
        """True if the pipeline drops its remainder."""
        return self._batch is not None and self._batch.drops_remainder

    def length(self) -> tuple[int, int] | None:
        """Batches and examples of one pass, if they are known."""
        batches = len(self._dataset)
        if self._batch is None or grain_tree.drops_elements(self._dataset) or batches >= _ENDLESS:
            return None
        # No whole number of epochs, as after a slice of batches: all of them are taken to be full.
        if self._batch.drops_remainder or batches % max(self._batches, 1):
            return batches, batches * self._batch.size
        return batches, batches // max(self._batches, 1) * self._records

    def batch_size(self) -> int | None:
        """Examples in a full batch."""
        return None if self._batch is None else self._batch.size

    def left_over(self) -> int:
        """Examples that the pipeline drops at the end of a pass."""
        if self._batch is None or not self._batch.drops_remainder:
            return 0
        return self._records % self._batch.size

    def knows_end(self) -> bool:
        """True if the number of batches is the same on every worker."""
        return not grain_tree.drops_elements(self._dataset)

    def files(self) -> tuple[str, ...]:
        """The files that the dataset reads."""
        return grain_files.files(self._dataset)

    def by_file(self, shard: Shard) -> Source:
        """The dataset over this worker's files."""
        return MapSource(grain_files.keep(self._dataset, shard))

    def by_hint(self, shard: Shard) -> Source:
        """The dataset with its mark replaced by this worker's share."""
        return MapSource(grain_files.at_hint(self._dataset, shard))


class _Epoch(grain.MapDataset[Any]):
    """A later epoch of a dataset: as `repeat` has it, so that each shuffle and random map goes on."""

    def __init__(self, parent: Node, epoch: int) -> None:
        super().__init__(parent)
        self._first = epoch * len(parent)

    def __len__(self) -> int:
        return len(self.parents[0])

    def __getitem__(self, index: int | slice) -> Any:
        parent: Any = self.parents[0]
        return parent[self._first + index] if isinstance(index, int) else self.slice(index)


def to_batch(element: Nest) -> Batch:
    """A dataset's element as a batch; this package's own nodes give one already."""
    return element if isinstance(element, Batch) else as_batch(element)


class _Positions:
    """Position of a random-access stream, which holds for any number of workers."""

    def __init__(self, length: int, batch_size: int | None) -> None:
        self._length = length
        self._batch_size = batch_size

    def state(self, index: int) -> dict[str, Any]:
        """The position before the batch of this index."""
        return {"next": index, "batch_size": self._batch_size, "length": self._length}

    def index(self, state: Json) -> int:
        """The index that a saved position means here, also if the batch size has changed since."""
        index, size = int(state["next"]), state.get("batch_size")
        if size != self._batch_size:
            # At the end the last batch may have been a short one: nobody knows how many examples there were.
            examples = index * (size or 1)
            index, rest = divmod(examples, self._batch_size or 1)
            if rest or state["length"] == int(state["next"]):
                raise InputError(
                    f"the position was saved after {examples} examples in batches of {size}, which is no whole number "
                    f"of batches of {self._batch_size}. HINT: restore with the batch size that it was saved with, or "
                    "one that divides it."
                )
        if not 0 <= index <= self._length:
            raise InputError(
                f"the position is batch {index} of a dataset that has {self._length}. "
                "HINT: restore onto the dataset that it was saved from."
            )
        return index


class _IndexStream:
    """Reads batches by index, in the thread that asks."""

    def __init__(self, dataset: Node, batch_size: int | None) -> None:
        self._dataset = dataset
        self._length = len(dataset)
        self._positions = _Positions(self._length, batch_size)
        self._next = 0

    def __next__(self) -> Batch:
        if self._next >= self._length:
            raise StopIteration
        batch = self._dataset[self._next]
        self._next += 1
        return to_batch(batch)

    def get_state(self) -> dict[str, Any]:
        """The position."""
        return self._positions.state(self._next)

    def set_state(self, state: Json) -> None:
        """Goes to a position."""
        self._next = self._positions.index(state)

    def close(self) -> None:
        """Nothing is held."""


class _ThreadedStream:
    """Reads records through Grain's own threads."""

    def __init__(self, dataset: Node, batch_size: int | None) -> None:
        threads = _THREADS_IN_MEMORY if grain_tree.is_in_memory(dataset) else _THREADS
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=_READ_AHEAD)
        self._iterator: Any = iter(dataset.to_iter_dataset(options))
        self._positions = _Positions(len(dataset), batch_size)

    def __next__(self) -> Batch:
        return to_batch(next(self._iterator))

    def get_state(self) -> dict[str, Any]:
        """The position."""
        return self._positions.state(self._iterator.get_state()["next_index"])

    def set_state(self, state: Json) -> None:
        """Goes to a position."""
        self._iterator.set_state({"next_index": self._positions.index(state)})

    def close(self) -> None:
        """Closes what is read from."""
        self._iterator.close()


register_source("grain.MapDataset", lambda dataset: isinstance(dataset, grain.MapDataset), MapSource)


def _accepts(dataset: object) -> bool:
    """An array, or a tuple or mapping of them. A list is an iterable of batches instead."""
    if isinstance(dataset, (jax.Array, np.ndarray)):
        return bool(dataset.ndim)
    return isinstance(dataset, (tuple, dict)) and has_arrays_only(dataset)


_made = lambda dataset: MapSource(make_numpy_dataset(dataset))  # noqa: E731
register_source("NumPy or JAX arrays in a tuple or dict", _accepts, _made, rank=10)
