"""Insides of a dataset: records that can be asked for by number, or a stream that can be started again."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, TypeAlias

import grain
import jax
import numpy as np

from jaxtribute._src.addons.compat.tf import cardinalities, element_specs
from jaxtribute._src.addons.compat.tf.cardinalities import INFINITE, UNKNOWN
from jaxtribute.errors import ArgumentError, InputError
from jaxtribute.extending import exact
from jaxtribute.typing import Nest

_ENDLESS = sys.maxsize - 2**12
"""About the number of records that Grain counts in what repeats for ever. Of its own one, batches are miscounted."""

Spec: TypeAlias = Callable[[], Any]
"""Finds out the spec of a pipeline's elements."""


@dataclass(frozen=True)
class Indexed:
    """Records by number: a Grain dataset, read by whole batches if that is possible."""

    dataset: grain.MapDataset[Any]
    fixed: bool = False
    """True if all records are sure to have one shape: rows of arrays, and batches without a remainder."""
    spec: Spec | None = None
    """Finds out the elements' spec; None if only an element can tell."""
    endless: bool = False
    """True if it repeats for ever."""
    later: Callable[[int], grain.MapDataset[Any]] | None = None
    """Makes the dataset of a later pass, of what repeats for ever or is cut out of that: numbers beyond it are no
    later pass there."""

    def __iter__(self) -> Iterator[Nest]:
        return self.open(0)

    def open(self, epoch: int) -> Iterator[Nest]:
        """Reads all records, in the order that shuffles have in pass number `epoch`."""
        # Grain's own shuffle repeats a record at some lengths.
        dataset, count = exact(self.at(epoch).dataset), len(self.dataset)
        # Numbers from its length on are those of the next epoch.
        first = epoch * count if self.later is None else 0
        return (dataset[first + index] for index in range(count))

    def at(self, epoch: int) -> Indexed:
        """Returns what pass number `epoch` reads, if repeated for ever; all else is numbered through all passes."""
        return self if self.later is None or not epoch else replace(self, dataset=self.later(epoch))

    def count(self) -> int:
        """The number of records, as `tf.data.Dataset.cardinality` tells it."""
        return INFINITE if self.endless else len(self.dataset)

    def _through(self, change: Callable[[grain.MapDataset[Any]], grain.MapDataset[Any]], **changes: Any) -> Indexed:
        """The same of another dataset, made by a function, in all passes."""
        later = self.later
        return replace(
            self,
            dataset=change(self.dataset),
            later=None if later is None else lambda epoch: change(later(epoch)),
            **changes,
        )

    def map(self, function: Callable[[Nest], Nest]) -> Indexed:
        """Each record changed."""
        return self._through(lambda dataset: dataset.map(function), fixed=False, spec=_spec_of_results(self, function))

    def batch(self, size: int, drop_remainder: bool) -> Indexed:
        """Records joined along a new first axis."""
        # Rows of arrays of strings are bytes, of which NumPy makes arrays that lose zeros at their ends.
        strings = self.fixed and element_specs.has_strings(self.element_spec())
        return self._through(
            lambda dataset: (dataset.map(_objects) if strings else dataset).batch(size, drop_remainder=drop_remainder),
            fixed=drop_remainder,
            spec=batched(self, size if drop_remainder else None),
        )

    def repeat(self, count: int | None) -> Indexed:
        """All records several times; None for ever."""
        if count == 0:
            return self.cut(0, 0)
        if self.endless or not len(self.dataset):
            return self
        passes = self if self.later is None else replace(self, dataset=_Passes(self), later=None)
        if count is not None:
            return replace(passes, dataset=passes.dataset.repeat(count))
        records = len(passes.dataset)
        dataset = passes.dataset.repeat(_ENDLESS // records)
        return replace(passes, dataset=dataset, endless=True, later=lambda epoch: dataset[epoch * records :])

    def cut(self, start: int, stop: int | None, step: int = 1) -> Indexed:
        """Some of the records."""
        endless = self.endless and stop is None
        return self._through(lambda dataset: dataset[start:stop:step], endless=endless)

    def shuffle(self, buffer: int, seed: int, *, anew: bool = True) -> Indexed | Streamed:
        """The records in an order drawn over all of them; if `anew`, another one in each repetition and pass."""
        # Grain cannot draw from infinitely many; a stream is shuffled within a buffer, as TensorFlow does it.
        if self.endless:
            return self.stream().shuffle(buffer, seed, anew=anew)
        dataset = self.dataset if self.later is None else _Passes(self)
        shuffled = dataset.shuffle(seed=seed)
        return replace(self, dataset=shuffled if anew else shuffled.repeat(1, reseed_each_epoch=False), later=None)

    def cache(self) -> Indexed:
        """The records, each read once."""
        return replace(self, dataset=grain.MapDataset.source(_Kept(self.dataset)), later=None)

    def stream(self) -> Streamed:
        """The records one after the other."""
        return Streamed(self.open, self.count(), self.spec)

    def first(self) -> list[Nest]:
        """The first records."""
        # Two, since one by number costs no more than itself: their shapes may depend on what is in them.
        return list(itertools.islice(self.open(0), 2))

    def element_spec(self) -> Any:
        """Shapes and types of an element; it may read some for that."""
        return _read_spec(self) if self.spec is None else self.spec()


@dataclass(frozen=True)
class Streamed:
    """Records one after the other; `open` starts a pass of that number, on which the order of shuffles depends."""

    open: Callable[[int], Iterator[Nest]]
    size: int = UNKNOWN
    """The number of records, as `tf.data.Dataset.cardinality` tells it."""
    spec: Spec | None = None
    """Finds out the elements' spec; None if only an element can tell."""

    def __iter__(self) -> Iterator[Nest]:
        return self.open(0)

    def count(self) -> int:
        """The number of records, as `tf.data.Dataset.cardinality` tells it."""
        return self.size

    def map(self, function: Callable[[Nest], Nest]) -> Streamed:
        """Each record changed."""
        return replace(self, open=lambda epoch: map(function, self.open(epoch)), spec=_spec_of_results(self, function))

    def filter(self, predicate: Callable[[Nest], bool]) -> Streamed:
        """The records for which it holds."""
        return replace(self, open=lambda epoch: filter(predicate, self.open(epoch)), size=UNKNOWN)

    def batch(self, size: int, drop_remainder: bool) -> Streamed:
        """Records joined along a new first axis."""
        gathered = self.gather(size, drop_remainder)
        return Streamed(
            lambda epoch: map(stacked, gathered.open(epoch)),
            gathered.size,
            batched(self, size if drop_remainder else None),
        )

    def gather(self, size: int, drop_remainder: bool) -> Streamed:
        """Records in lists of `size`."""

        def lists(epoch: int) -> Iterator[Nest]:
            records = self.open(epoch)
            while rows := list(itertools.islice(records, size)):
                if len(rows) < size and drop_remainder:
                    return
                yield rows

        return Streamed(lists, cardinalities.batched(self.size, size, drop_remainder))

    def repeat(self, count: int | None) -> Streamed:
        """All records several times; None for ever. A stream without records ends at once."""

        def repeated(epoch: int) -> Iterator[Nest]:
            first = epoch * (count or 1)
            for number in itertools.count(first) if count is None else range(first, first + count):
                # A stream that gives nothing would otherwise be opened again for ever.
                empty = True
                for record in self.open(number):
                    empty = False
                    yield record
                if empty:
                    return

        return replace(self, open=repeated, size=cardinalities.repeated(self.size, count))

    def cut(self, start: int, stop: int | None, step: int = 1) -> Streamed:
        """Some of the records."""
        return replace(
            self,
            open=lambda epoch: itertools.islice(self.open(epoch), start, stop, step),
            size=cardinalities.cut(self.size, start, stop, step),
        )

    def shuffle(self, buffer: int, seed: int, *, anew: bool = True) -> Streamed:
        """The records in an order drawn within a buffer that moves along; if `anew`, another one in each pass."""

        def shuffled(epoch: int) -> Iterator[Nest]:
            # Seeded at the start of each pass, so that a pass can be gone through again.
            generator = np.random.default_rng([seed, epoch] if anew and epoch else seed)
            held: list[Nest] = []
            for record in self.open(epoch):
                held.append(record)
                if len(held) >= buffer:
                    yield held.pop(int(generator.integers(len(held))))
            while held:
                yield held.pop(int(generator.integers(len(held))))

        return replace(self, open=shuffled)

    def cache(self) -> Streamed:
        """The records, kept by the first pass that reads all of them."""
        kept: list[list[Nest]] = []

        def records(epoch: int) -> Iterator[Nest]:
            if kept:
                yield from kept[0]
                return
            read: list[Nest] = []
            for record in self.open(epoch):
                read.append(record)
                yield record
            # Whole, or not at all: a pass that was left half-way would end the next ones there.
            kept.append(read)

        return replace(self, open=records)

    def stream(self) -> Streamed:
        """Itself."""
        return self

    def first(self) -> list[Nest]:
        """The first record. There may be one only, and none after it for a long time."""
        return list(itertools.islice(self.open(0), 1))

    def element_spec(self) -> Any:
        """Shapes and types of an element; it may read one for that."""
        return _read_spec(self) if self.spec is None else self.spec()


Pipeline = Indexed | Streamed


def _spec_of_results(pipeline: Pipeline, function: Callable[[Nest], Any]) -> Spec:
    """Finds out the spec of what a function makes of a pipeline's elements, once."""
    return functools.cache(lambda: element_specs.of_results(function, pipeline.first(), pipeline.element_spec()))


def batched(pipeline: Pipeline, size: int | None) -> Spec:
    """Finds out the spec of batches of a pipeline's elements."""
    return lambda: element_specs.batched(pipeline.element_spec(), size)


def _read_spec(pipeline: Pipeline) -> Any:
    elements = pipeline.first()
    if not elements:
        raise InputError("the dataset is empty, so nothing is known of its elements. HINT: give it an element.")
    return element_specs.of_any_lengths(elements[0])


def stacked(rows: list[Nest]) -> Any:
    """Elements as one, along a new first axis.

    Raises:
      ArgumentError: they are datasets.
    """
    return jax.tree.map(_stack, *rows)


def _stack(*leaves: Any) -> Any:
    if hasattr(leaves[0], "element_spec"):
        raise ArgumentError("batches of datasets cannot be read. HINT: flat_map(lambda window: window.batch(size)).")
    return np.stack(list(map(_objects, leaves)))


def _objects(element: Nest) -> Any:
    """An element with strings as objects."""
    return jax.tree.map(lambda leaf: np.array(leaf, object) if isinstance(leaf, bytes) else leaf, element)


class _Passes(grain.MapDataset[Any]):
    """Records cut out of an endless dataset, numbered through all passes."""

    def __init__(self, records: Indexed) -> None:
        super().__init__()
        self._records = records
        self._read = functools.lru_cache(2)(lambda epoch: exact(records.at(epoch).dataset))

    def __len__(self) -> int:
        return len(self._records.dataset)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        epoch, place = divmod(index, len(self))
        return self._read(epoch)[place]


def take_turns(streams: Iterator[Iterator[Nest]], width: int, block: int) -> Iterator[Nest]:
    """The records of `width` streams at a time, `block` from each in turn; where one ends the next takes its place."""
    turns = list(itertools.islice(streams, width))
    while turns:
        # A copy, since the list changes while it is walked.
        for turn in tuple(turns):
            records = list(itertools.islice(turn, block))
            yield from records
            if len(records) < block:
                # Searched for, since streams that ended earlier in this round have moved it.
                place, fresh = turns.index(turn), next(streams, None)
                turns[place : place + 1] = [] if fresh is None else [fresh]


class _Kept:
    """Records that are read when they are first asked for."""

    def __init__(self, dataset: grain.MapDataset[Any]) -> None:
        self._dataset = dataset
        self._records: dict[int, Nest] = {}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: SupportsIndex) -> Nest:
        number = int(index)
        if number not in self._records:
            self._records[number] = self._dataset[number]
        return self._records[number]


class GrainStream(grain.IterDataset[Any]):
    """The elements of a pipeline, of which each iterator is another pass.

    Args:
      pipeline: where they come from.
      passes: numbers of passes, on which the order of shuffles depends.
    """

    def __init__(self, pipeline: Pipeline, passes: Iterator[int]) -> None:
        super().__init__()
        self._pipeline, self._passes = pipeline, passes

    def __iter__(self) -> _Pass:
        return _Pass(self._pipeline, next(self._passes))


class _Pass(grain.DatasetIterator[Any]):
    """One pass; its position is its number and how many elements it has given."""

    def __init__(self, pipeline: Pipeline, number: int) -> None:
        super().__init__()
        self._pipeline, self._number, self._given = pipeline, number, 0
        self._elements = pipeline.open(number)

    def __next__(self) -> Any:
        element = next(self._elements)
        self._given += 1
        return element

    def get_state(self) -> dict[str, Any]:
        return {"number": self._number, "given": self._given}

    def set_state(self, state: dict[str, Any]) -> None:
        # A stream cannot be entered in the middle: it is read up to there once more.
        self._number, self._given = state["number"], state["given"]
        self._elements = itertools.islice(self._pipeline.open(self._number), self._given, None)
