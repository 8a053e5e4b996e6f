"""All that the library knows of Grain's insides: the kinds of its nodes, and what their private fields say.

Other files read a Grain dataset through these functions alone. `tests/core/input/test_grain_internals.py` states each
fact, so that a release of Grain that changes one fails there.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import grain
from grain._src.python.dataset import dataset as core
from grain._src.python.dataset.transformations import (
    batch,
    filter,
    flatmap,
    interleave,
    map,
    mix,
    prefetch,
    repeat,
    shuffle,
    slice,
)
from grain._src.python.dataset.transformations import source as sources
from grain.experimental import ParquetIterDataset, TFRecordIterDataset

from jaxtribute._src.core.types import Foreign

Node: TypeAlias = Any
"""A node of a Grain tree: a `MapDataset` or an `IterDataset`."""

_REORDERING = (
    shuffle.ShuffleMapDataset,
    shuffle.WindowShuffleMapDataset,
    slice.SliceMapDataset,
    repeat.RepeatMapDataset,
    core._WithSeedMapDataset,
)
_DROPPING = (filter.FilterMapDataset, filter.FilterIterDataset, flatmap.FlatMapMapDataset)
_MAPS = (map.MapMapDataset, map.MapWithIndexMapDataset, map.RandomMapMapDataset)
_OF_PARENTS = ("_stats", "_default_seed", "_get_parent_items_fn", "_threshold_checker")
"""Attributes in which a node keeps what it has found out about its parents."""


@dataclass(frozen=True, slots=True)
class Batching:
    """A node's way of making batches.

    Attributes:
      size: records in a full batch.
      drops_remainder: True if a last batch of fewer records is left out.
      stack: makes a batch of a list of records.
    """

    size: int
    drops_remainder: bool
    stack: Callable[[Sequence[Any]], Any]

    @property
    def default(self) -> bool:
        """True if records are stacked in Grain's own way."""
        return self.stack is batch.make_batch


@dataclass(frozen=True, slots=True)
class Shuffling:
    """A node that permutes the records of each window; window number `w` by the seed `seed + w`, modulo 2**32."""

    window: int
    seed: int


@dataclass(frozen=True, slots=True)
class Slicing:
    """A node that takes records `start`, `start + stride`, ... of each `whole` records."""

    whole: int
    start: int
    stride: int


class SameElements(grain.MapDataset[Any]):
    """Base of nodes of the library that change no element, and say so to Grain."""

    _MUTATES_ELEMENT_SPEC = False

    def __len__(self) -> int:
        return len(self.parents[0])


def parents(node: Node) -> tuple[Node, ...]:
    """The datasets that a node reads from."""
    # Grain's users need not call `super().__init__()`, which sets the field.
    return tuple(getattr(node, "_parents", ()))


def with_parents(node: Node, replaced: tuple[Node, ...]) -> Node:
    """Copies a node over other parents. Lengths that it took from them are taken again.

    Raises:
      ValueError: the node is a slice of a certain number of records, and now there are others.
    """
    # A copy, as each kind of node has a constructor of its own, and the user's subclasses have any.
    clone = copy.copy(node)
    for cached in _OF_PARENTS:
        clone.__dict__.pop(cached, None)
    clone._parents = replaced
    # Lengths were taken from the old parents when the node was made.
    if isinstance(clone, batch.BatchMapDataset):
        clone._length = clone._get_length()
    elif isinstance(clone, repeat.RepeatMapDataset):
        clone.__init__(replaced[0], clone._num_epochs, reseed_each_epoch=clone._reseed_each_epoch)
    # Its bounds are numbers of records, worked out for the old parent.
    elif isinstance(clone, slice.SliceMapDataset) and len(replaced[0]) != clone._parent_length:
        raise ValueError(f"{clone} was resolved for {clone._parent_length} records, and now there are fewer")
    return clone


def is_reordering(node: Node) -> bool:
    """True if a node only chooses and orders records, and never looks at them."""
    # By their exact types: a subclass of the user's may do anything with the records.
    return type(node) in _REORDERING


def may_drop(node: Node) -> bool:
    """True if a node itself may leave out elements that its length counts."""
    return isinstance(node, _DROPPING)


def is_map(node: Node) -> bool:
    """True if a node maps elements one to one."""
    return isinstance(node, _MAPS)


def batching(node: Node) -> Batching | None:
    """The way in which a node makes batches, if that is what it does."""
    if not isinstance(node, (batch.BatchMapDataset, batch.BatchIterDataset)):
        return None
    return Batching(node._batch_size, node._drop_remainder, node._batch_fn)


def shuffling(node: Node) -> Shuffling | None:
    """The permutation of a node that shuffles, all records together or by windows."""
    if isinstance(node, shuffle.ShuffleMapDataset):
        return Shuffling(len(node), node._seed)
    if isinstance(node, shuffle.WindowShuffleMapDataset):
        return Shuffling(node._window_size, node._seed)
    return None


def shuffles_all(node: Node) -> bool:
    """True if a node is Grain's own shuffle of all records together."""
    return type(node) is shuffle.ShuffleMapDataset


def slicing(node: Node) -> Slicing | None:
    """The records that a slice takes."""
    if not isinstance(node, slice.SliceMapDataset):
        return None
    return Slicing(node._parent_length, node._start, node._step)


def repeated_alike(node: Node) -> int | None:
    """The length of what a node repeats in the same order each time; None if it does something else."""
    if not isinstance(node, repeat.RepeatMapDataset) or node._reseed_each_epoch:
        return None
    return node._parent_length


def source_of(node: Node) -> Any:
    """The data source that a node reads from, or None."""
    return node._source if isinstance(node, sources.SourceMapDataset) else None


def range_of(node: Node) -> tuple[int, int, int] | None:
    """Start, stop and step of a `MapDataset.range`, or None."""
    return (node.start, node.stop, node.step) if isinstance(node, sources.RangeMapDataset) else None


def read_ahead(node: Node) -> Node | None:
    """The random-access dataset that a node reads ahead of, as `to_iter_dataset` makes it; None for others."""
    return node._parent if isinstance(node, prefetch.PrefetchIterDataset) else None


# ------------------------------------------------------------------------------------------------------------ files


def paths(node: Node) -> tuple[str, ...]:
    """The files that a node itself opens."""
    if isinstance(node, ParquetIterDataset):
        return tuple(str(path) for path in node._paths)
    if isinstance(node, TFRecordIterDataset):
        return (str(node._path),)
    held = getattr(source_of(node), "paths", ())
    # A source of one file may hold the name itself, which would be walked letter by letter.
    return tuple(str(path) for path in ([held] if isinstance(held, str) else held))


def interleaved(node: Node) -> Sequence[Node] | None:
    """The datasets that a node interleaves, themselves perhaps a dataset; None for other nodes."""
    return node._datasets if isinstance(node, interleave.InterleaveIterDataset) else None


def is_concatenation(node: Node) -> bool:
    """True if a node reads its parents one after another."""
    return isinstance(node, mix.ConcatenateMapDataset)


def over_files(node: Node, own: Foreign) -> Node:
    """A node that reads files, over the slice `own` of them.

    Raises:
      ValueError: it reads a single file, or parts of files.
    """
    if isinstance(node, (ParquetIterDataset, interleave.InterleaveIterDataset)):
        clone: Any = copy.copy(node)
        clone.set_slice(own)
        return clone
    if is_concatenation(node):
        return grain.MapDataset.concatenate(list(parents(node)[own]))
    source = source_of(node)
    if source is None:
        raise ValueError(f"{node} reads a single file")
    return grain.MapDataset.source(_source_over(source, own))


def _source_over(source: Foreign, own: Foreign) -> Any:
    record_files: Any = grain.sources.ArrayRecordDataSource
    files = list(source.paths)
    if len({str(file) for file in files}) < len(files):
        raise ValueError(f"{source!r} reads parts of one file more than once")
    if not isinstance(source, record_files):
        # The library's own source of lines has one argument more.
        rest = {"encoding": source.encoding} if hasattr(source, "encoding") else {}
        return type(source)(files[own], **rest)
    given = source._reader_options_string
    # Grain keeps the options as one text, `name:value` after `name:value`.
    options = dict(pair.split(":", 1) for pair in given.split(",")) if given else None
    # A path may name a part of a file, which the new source would read whole: only the numbers of records tell.
    result = record_files(source.paths[own], options)
    if len(result) != sum(part.num_records for part in source._read_instructions[own]):
        raise ValueError(f"{source!r} reads only parts of its files")
    return result


# ------------------------------------------------------------------------------------------------- `grain.DataLoader`


def loader_shards(loader: Foreign) -> int:
    """The number of shards of which a `grain.DataLoader` reads one."""
    return loader._shard_options.shard_count


def close_loader(iterator: Foreign) -> None:
    """Ends the threads and processes behind an iterator of a `grain.DataLoader`."""
    iterator._iterator.close()
