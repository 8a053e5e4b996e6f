"""Grain nodes that read batches for one worker: whole batches by index from arrays, or only the worker's records."""

from __future__ import annotations

from typing import Any

import grain
import numpy as np

from jaxtribute._src.core.input import grain_internals as internals
from jaxtribute._src.core.input import grain_tree
from jaxtribute._src.core.input.batches import Batch, as_batch, rows
from jaxtribute._src.core.input.grain_internals import Node, parents
from jaxtribute._src.core.input.grain_tree import PositionMap
from jaxtribute._src.core.input.permutation import Positions
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.types import Nest

_CHUNK = 1 << 14


class _WorkerBatches(grain.MapDataset[Batch]):
    """The batches of a batching node, cut down to the rows of one worker."""

    def __init__(self, node: Node, shard: Shard) -> None:
        self._records = parents(node)[0]
        super().__init__(self._records)
        batching = internals.batching(node)
        assert batching is not None
        self._size, self._stack = batching.size, batching.stack
        self._length = len(node)
        self._shard = shard

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, int):
            return self.slice(index)
        # Beyond its length a dataset goes on with the next epoch, whose records have numbers of their own: so a
        # shuffle below gives them in another order.
        epoch, batch = divmod(index, self._length)
        records = len(self._records)
        total = min(self._size, records - batch * self._size)
        start, stop = self._shard.bounds(total)
        first = epoch * records + batch * self._size
        return Batch(self._read(first + start, first + stop), total, start)

    def _read(self, start: int, stop: int) -> Nest:
        raise NotImplementedError


class ArrayBatches(_WorkerBatches):
    """Batches taken from arrays, or from a range, by one indexing operation each."""

    def __init__(self, node: Node, shard: Shard, positions: PositionMap, source: Node) -> None:
        super().__init__(node, shard)
        self._positions = positions
        self._source = grain_tree.array_source(source)
        self._range = internals.range_of(source)
        # Many batches of a small dataset at once, though no more than an epoch of it: each is shuffled by itself, and
        # a dataset that is repeated without end is as long as an integer can say.
        self._chunk_size = min(_CHUNK, max(min(len(self._records), len(source)), self._size))
        self._chunks: dict[int, Positions] = {}

    def _read(self, start: int, stop: int) -> Nest:
        indices = self._indices(start, stop)
        if self._source is not None:
            return self._source.take(indices)
        assert self._range is not None
        first, _, step = self._range
        return first + indices * step

    def _indices(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Positions in the source. They are computed for many batches at once, which costs hardly more than for one."""
        if stop <= start:
            return np.empty(0, np.int64)
        size = self._chunk_size
        pieces = [
            self._chunk(number)[max(start - number * size, 0) : stop - number * size]
            for number in range(start // size, (stop - 1) // size + 1)
        ]
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).astype(np.int64)

    def _chunk(self, number: int) -> Positions:
        chunk = self._chunks.get(number)
        if chunk is None:
            start = np.uint64(number * self._chunk_size)
            chunk = self._positions(np.arange(self._chunk_size, dtype=np.uint64) + start)
            # One dictionary operation each, so that two iterators may share this node.
            self._chunks = {number: chunk, **dict(list(self._chunks.items())[-1:])}
        return chunk


class RecordBatches(_WorkerBatches):
    """Batches stacked from records, of which only this worker's are read."""

    def _read(self, start: int, stop: int) -> Nest:
        if stop > start:
            return as_batch(self._stack([self._records[index] for index in range(start, stop)])).tree
        # No rows for this worker: one record tells what they would look like.
        return rows(as_batch(self._stack([self._records[max(start - 1, 0)]])).tree, 0, 0)


def for_worker(dataset: Node, shard: Shard) -> tuple[Any, str]:
    """Rewrites a Grain `MapDataset` so that a worker reads no more than it needs.

    Returns:
      The dataset, and how it is read: `"arrays"` (its elements are `Batch`es cut by index), `"records"` (`Batch`es
      of this worker's records) or `"all"` (elements as the pipeline makes them).
    """
    # First of all: Grain's own shuffle repeats a record at some lengths, and takes long at short ones.
    dataset = grain_tree.exact(dataset)
    node = grain_tree.outer_batch(dataset)
    if node is None:
        inner = _first_array_batch(dataset)
        if inner is None:
            return dataset, "all"
        # A map over whole batches sees them whole, on every worker.
        positions = grain_tree.positions_of(parents(inner)[0])
        assert positions is not None
        whole = _Trees(ArrayBatches(inner, Shard(), *positions))
        return grain_tree.rewrite(dataset, lambda n: whole if n is inner else None), "all"
    positions = grain_tree.positions_of(parents(node)[0])
    if positions is not None and (grain_tree.array_source(positions[1]) or internals.range_of(positions[1])):
        cut: Any = ArrayBatches(node, shard, *positions)
        return grain_tree.rewrite(dataset, lambda n: cut if n is node else None), "arrays"
    # A single worker needs all records, as Grain reads them by itself.
    if shard.workers == 1:
        return dataset, "all"
    cut = RecordBatches(node, shard)
    return grain_tree.rewrite(dataset, lambda n: cut if n is node else None), "records"


def _first_array_batch(node: Node) -> Any:
    """The batching node over arrays below maps of whole batches, if that is all there is."""
    while grain_tree.reorders(node) or internals.is_map(node):
        node = parents(node)[0]
    if grain_tree.stacking(node) is None:
        return None
    positions = grain_tree.positions_of(parents(node)[0])
    if positions is None or not (grain_tree.array_source(positions[1]) or internals.range_of(positions[1])):
        return None
    return node


class _Trees(grain.MapDataset[Nest]):
    """Takes the arrays out of `Batch`es, for the user's functions."""

    def __init__(self, parent: Node) -> None:
        super().__init__(parent)

    def __len__(self) -> int:
        return len(self.parents[0])

    def __getitem__(self, index: int | slice) -> Any:
        parent: Any = self.parents[0]
        return parent[index].tree if isinstance(index, int) else self.slice(index)
