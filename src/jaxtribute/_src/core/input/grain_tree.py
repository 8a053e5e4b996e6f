"""Reading and rewriting the tree of transformations of a Grain dataset.

Grain's datasets are immutable; a rewrite copies the nodes from the root to the place of the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from jaxtribute._src.core.input import grain_internals as internals
from jaxtribute._src.core.input.array_source import ArraySource
from jaxtribute._src.core.input.grain_internals import Batching, Node, parents
from jaxtribute._src.core.input.permutation import Positions, permute, permutes_exactly, permutes_quickly

PositionMap: TypeAlias = Callable[[Positions], Positions]
"""Maps positions in a dataset to positions below it."""


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, from the top down."""
    yield node
    for parent in parents(node):
        yield from walk(parent)


def rewrite(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """Replaces nodes, from the top down: `change` returns a new node, or None to look below."""
    changed = change(node)
    if changed is not None:
        return changed
    old = parents(node)
    new = tuple(rewrite(parent, change) for parent in old)
    # Where nothing below has changed the node itself stays, with what it has found out so far.
    return node if all(a is b for a, b in zip(old, new, strict=True)) else internals.with_parents(node, new)


def stacking(node: Node) -> Batching | None:
    """The batching of a node that stacks records in Grain's default way; None for all others."""
    batching = internals.batching(node)
    return batching if batching is not None and batching.default else None


def drops_elements(node: Node) -> bool:
    """True if a node of the tree may leave out elements, so that positions and counts are not known ahead."""
    return any(internals.may_drop(below) for below in walk(node))


def outer_batch(node: Node) -> Node | None:
    """The batching node whose batches reach the top of the tree unchanged, if there is one."""
    while reorders(node) and stacking(node) is None:
        node = parents(node)[0]
    return node if stacking(node) is not None else None


def as_map_dataset(node: Node) -> Node:
    """The random-access form of a dataset, where its only sequential part is reading ahead and batching."""
    records = internals.read_ahead(node)
    if records is not None:
        return records
    batching = internals.batching(node)
    if batching is not None:
        below = parents(node)[0]
        records = internals.read_ahead(below)
        # Where elements are left out, the batch of an index is not the one that comes at that place.
        if records is not None and not drops_elements(below):
            return records.batch(batching.size, drop_remainder=batching.drops_remainder, batch_fn=batching.stack)
    return node


def positions_of(node: Node) -> tuple[PositionMap, Node] | None:
    """Finds how positions in a dataset map to records of its source.

    Returns:
      The map, for arrays of positions, and the source node; None if the dataset does more than reorder.
    """
    if internals.source_of(node) is not None or internals.range_of(node) is not None:
        return _within(len(node)), node
    if not reorders(node):
        return None
    below = positions_of(parents(node)[0])
    if below is None:
        return None
    inner, source = below
    step = _step(node)
    return (lambda positions: inner(step(positions))), source


def reorders(node: Node) -> bool:
    """True if a node only chooses and orders records, and never looks at them."""
    return internals.is_reordering(node) or type(node) is ExactShuffle


def _within(length: int) -> PositionMap:
    # A further epoch of a source, and of what is repeated alike, is in the order of the first.
    return lambda positions: positions % np.uint64(length)


def _step(node: Node) -> PositionMap:
    if isinstance(node, ExactShuffle):
        return node.step
    shuffled = internals.shuffling(node)
    if shuffled is not None:
        return _shuffled(shuffled)
    sliced = internals.slicing(node)
    if sliced is not None:
        return _sliced(sliced, len(node))
    repeated = internals.repeated_alike(node)
    if repeated is not None:
        return _within(repeated)
    return lambda positions: positions


def _shuffled(shuffle: internals.Shuffling) -> PositionMap:
    size = np.uint64(shuffle.window)

    def step(positions: Positions) -> Positions:
        group, within = positions // size, positions % size
        result = np.empty_like(positions)
        # Each window has a seed of its own; a batch mostly lies in one or two.
        for number in np.unique(group):
            chosen = group == number
            seed = (shuffle.seed + int(number)) % 2**32
            result[chosen] = permute(within[chosen], shuffle.window, seed) + number * size
        return result

    return step


def _sliced(slicing: internals.Slicing, length: int) -> PositionMap:
    def step(positions: Positions) -> Positions:
        # One epoch of the slice lies in one epoch of the whole, so positions beyond its length skip what it leaves out.
        signed = positions.astype(np.int64)
        return (slicing.start + signed % length * slicing.stride + signed // length * slicing.whole).astype(np.uint64)

    return step


def array_source(node: Node) -> ArraySource | None:
    """The arrays that a source node reads rows of, if that is what it does."""
    held = internals.source_of(node)
    if isinstance(held, ArraySource):
        return held
    return ArraySource(held) if isinstance(held, np.ndarray) and held.ndim else None


def is_in_memory(node: Node) -> bool:
    """True if all records come from arrays, sequences or ranges, so that reading waits for nothing."""
    ends = [below for below in walk(node) if not parents(below)]
    held = (ArraySource, np.ndarray, list, tuple)
    return all(internals.range_of(end) is not None or isinstance(internals.source_of(end), held) for end in ends)


class ExactShuffle(internals.SameElements):
    """A global shuffle for the lengths that Grain's own does not permute, or slowly; see `permutation.permute`."""

    def __init__(self, parent: Node, seed: int) -> None:
        super().__init__(parent)
        self.step = _shuffled(internals.Shuffling(len(parent), seed))

    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, int):
            return self.slice(index)
        return self.parents[0][int(self.step(np.array([index], np.uint64))[0])]


def exact(node: Node) -> Node:
    """The dataset with each shuffle that would repeat a record, or takes long, replaced by one that does not.

    The order stays as it is but for the records that Grain would repeat.

    Args:
      node: a Grain dataset.
    """

    def change(node: Node) -> Node | None:
        shuffling = internals.shuffling(node)
        if shuffling is None or not internals.shuffles_all(node):
            return None
        if permutes_exactly(shuffling.window) and permutes_quickly(shuffling.window):
            return None
        return ExactShuffle(exact(parents(node)[0]), shuffling.seed)

    return rewrite(node, change)
