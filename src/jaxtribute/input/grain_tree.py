"""Reading and rewriting the tree of transformations of a Grain dataset.

Everything that this package knows of Grain's insides is here. Grain's datasets are immutable; a rewrite copies the
nodes from the root to the place of the change.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import grain
import numpy as np
from grain._src.python.dataset import dataset as core
from grain._src.python.dataset.transformations import batch, filter, flatmap, map, prefetch, repeat, shuffle, slice
from grain._src.python.dataset.transformations import source as sources

from jaxtribute.input.array_source import ArraySource
from jaxtribute.input.permutation import Positions, permute, permutes_exactly

Node: TypeAlias = Any
"""A node of a Grain tree: a `MapDataset` or an `IterDataset`."""

_SEED_NODE: Any = core._WithSeedMapDataset


def parents(node: Node) -> tuple[Node, ...]:
    """The datasets that a node reads from."""
    return tuple(getattr(node, "_parents", ()))


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, from the top down."""
    yield node
    for parent in parents(node):
        yield from walk(parent)


def with_parents(node: Node, replaced: tuple[Node, ...]) -> Node:
    """A copy of a node over other parents. Lengths that it took from them are taken again."""
    clone = copy.copy(node)
    for cached in ("_stats", "_default_seed", "_get_parent_items_fn", "_threshold_checker"):
        clone.__dict__.pop(cached, None)
    clone._parents = replaced
    if isinstance(clone, batch.BatchMapDataset):
        clone._length = clone._get_length()
    elif isinstance(clone, repeat.RepeatMapDataset):
        clone.__init__(replaced[0], clone._num_epochs, reseed_each_epoch=clone._reseed_each_epoch)
    elif isinstance(clone, slice.SliceMapDataset) and len(replaced[0]) != clone._parent_length:
        raise ValueError(f"{clone} was resolved for {clone._parent_length} records, and now there are fewer")
    return clone


def rewrite(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """Replaces nodes, from the top down: `change` returns a new node, or None to look below."""
    changed = change(node)
    if changed is not None:
        return changed
    old = parents(node)
    new = tuple(rewrite(parent, change) for parent in old)
    return node if all(a is b for a, b in zip(old, new, strict=True)) else with_parents(node, new)


def is_default_batch(node: Node) -> bool:
    """Whether a node batches records in Grain's default way, by stacking."""
    return isinstance(node, (batch.BatchMapDataset, batch.BatchIterDataset)) and node._batch_fn is batch.make_batch


def is_reordering(node: Node) -> bool:
    """Whether a node only chooses and orders records, and never looks at them."""
    kinds = (
        shuffle.ShuffleMapDataset,
        shuffle.WindowShuffleMapDataset,
        slice.SliceMapDataset,
        repeat.RepeatMapDataset,
        _SEED_NODE,
    )
    return type(node) in kinds


def drops_elements(node: Node) -> bool:
    """Whether a node of the tree may leave out elements, so that positions and counts are not known ahead."""
    kinds = (filter.FilterMapDataset, filter.FilterIterDataset, flatmap.FlatMapMapDataset)
    return any(isinstance(below, kinds) for below in walk(node))


def outer_batch(node: Node) -> Node | None:
    """The batching node whose batches reach the top of the tree unchanged, if there is one."""
    while is_reordering(node) and not is_default_batch(node):
        node = parents(node)[0]
    return node if is_default_batch(node) else None


def as_map_dataset(node: Node) -> Node:
    """The random-access form of a dataset, where its only sequential part is reading ahead and batching."""
    if isinstance(node, prefetch.PrefetchIterDataset):
        return node._parent
    if isinstance(node, batch.BatchIterDataset):
        below = parents(node)[0]
        if isinstance(below, prefetch.PrefetchIterDataset) and not drops_elements(below):
            records: Any = below._parent
            return batch.BatchMapDataset(records, node._batch_size, node._drop_remainder, node._batch_fn)
    return node


def positions_of(node: Node) -> tuple[Callable[[Positions], Positions], Node] | None:
    """How positions in a dataset map to records of its source.

    Returns:
      The map, for arrays of positions, and the source node; None if the dataset does more than reorder.
    """
    if isinstance(node, (sources.SourceMapDataset, sources.RangeMapDataset)):
        return _within(len(node)), node
    if not is_reordering(node):
        return None
    below = positions_of(parents(node)[0])
    if below is None:
        return None
    inner, source = below
    step = _step(node)
    return (lambda positions: inner(step(positions))), source


def _within(length: int) -> Callable[[Positions], Positions]:
    return lambda positions: positions % np.uint64(length)


def _step(node: Node) -> Callable[[Positions], Positions]:
    if isinstance(node, shuffle.ShuffleMapDataset):
        return _shuffled(len(node), lambda epoch: (node._seed + epoch) % 2**32)
    if isinstance(node, shuffle.WindowShuffleMapDataset):
        return _shuffled(node._window_size, lambda window: (node._seed + window) % 2**32)
    if isinstance(node, slice.SliceMapDataset):
        return _sliced(node)
    if isinstance(node, repeat.RepeatMapDataset) and not node._reseed_each_epoch:
        return _within(node._parent_length)
    return lambda positions: positions


def _shuffled(length: int, seed_of: Callable[[int], int]) -> Callable[[Positions], Positions]:
    size = np.uint64(length)

    def step(positions: Positions) -> Positions:
        group, inside = positions // size, positions % size
        result = np.empty_like(positions)
        for number in np.unique(group):
            chosen = group == number
            result[chosen] = permute(inside[chosen], length, seed_of(int(number))) + number * size
        return result

    return step


def _sliced(node: Any) -> Callable[[Positions], Positions]:
    length, whole, start, stride = len(node), node._parent_length, node._start, node._step

    def step(positions: Positions) -> Positions:
        signed = positions.astype(np.int64)
        return (start + signed % length * stride + signed // length * whole).astype(np.uint64)

    return step


def array_source(node: Node) -> ArraySource | None:
    """The arrays that a source node reads rows of, if that is what it does."""
    if not isinstance(node, sources.SourceMapDataset):
        return None
    held = node._source
    if isinstance(held, ArraySource):
        return held
    return ArraySource(held) if isinstance(held, np.ndarray) and held.ndim else None


def is_in_memory(node: Node) -> bool:
    """Whether all records come from arrays, sequences or ranges, so that reading waits for nothing."""
    ends = [below for below in walk(node) if not parents(below)]
    return all(
        isinstance(end, sources.RangeMapDataset)
        or (
            isinstance(end, sources.SourceMapDataset)
            and isinstance(end._source, (ArraySource, np.ndarray, list, tuple))
        )
        for end in ends
    )


def range_of(node: Node) -> tuple[int, int, int] | None:
    """Start, stop and step of a `MapDataset.range`, or None."""
    return (node.start, node.stop, node.step) if isinstance(node, sources.RangeMapDataset) else None


class ExactShuffle(grain.MapDataset[Any]):
    """A global shuffle for the lengths that Grain's own does not permute; see `permutation.permute`."""

    _MUTATES_ELEMENT_SPEC = False

    def __init__(self, parent: Node, seed: int) -> None:
        super().__init__(parent)
        self._step = _shuffled(len(parent), lambda epoch: (seed + epoch) % 2**32)

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int):
            return self.slice(index)
        return self._parent[int(self._step(np.array([index], np.uint64))[0])]


def exact(node: Node) -> Node:
    """The dataset with each shuffle that would repeat a record replaced by one that does not."""

    def change(node: Node) -> Node | None:
        if type(node) is shuffle.ShuffleMapDataset and not permutes_exactly(len(node)):
            return ExactShuffle(exact(parents(node)[0]), node._seed)
        return None

    return rewrite(node, change)


def is_map(node: Node) -> bool:
    """Whether a node maps elements one to one."""
    return isinstance(node, (map.MapMapDataset, map.MapWithIndexMapDataset, map.RandomMapMapDataset))
