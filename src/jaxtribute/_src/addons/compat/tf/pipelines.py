"""Insides of a dataset: records that can be asked for by number, or a stream that can be started again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import grain
import jax
import numpy as np

from jaxtribute.extending import exact
from jaxtribute.typing import Nest

_MOST_RECORDS = 2**31
"""More records than these are infinitely many: Grain numbers a dataset that repeats for ever so."""


@dataclass(frozen=True)
class Indexed:
    """Records by number: a Grain dataset, read by whole batches if that is possible."""

    dataset: grain.MapDataset[Any]
    rows_vary: bool = False
    """True if records are batches of which the last may be smaller."""
    fixed: bool = False
    """True if all records are sure to have one shape: rows of arrays, and batches without a remainder."""

    def __iter__(self) -> Iterator[Nest]:
        return self.open(0)

    def open(self, epoch: int) -> Iterator[Nest]:
        """Reads all records, in the order that shuffles have in pass number `epoch`."""
        # Grain's own shuffle repeats a record at some lengths.
        dataset = exact(self.dataset)
        count = len(dataset)
        # Repeated without end it has one pass. Numbers from its length on are those of the next epoch.
        first = epoch * count if self.length() is not None else 0
        return (dataset[first + index] for index in range(count))

    def length(self) -> int | None:
        """The number of records; None for infinitely many."""
        count = len(self.dataset)
        return None if count >= _MOST_RECORDS else count

    def map(self, function: Callable[[Nest], Nest]) -> Indexed:
        """Each record changed."""
        return Indexed(self.dataset.map(function), self.rows_vary)

    def batch(self, size: int, drop_remainder: bool) -> Indexed:
        """Records joined along a new first axis."""
        return Indexed(self.dataset.batch(size, drop_remainder=drop_remainder), not drop_remainder, drop_remainder)

    def repeat(self, count: int | None) -> Indexed:
        """All records several times; None for ever."""
        return replace(self, dataset=self.dataset.repeat(count))

    def cut(self, start: int, stop: int | None, step: int = 1) -> Indexed:
        """Some of the records."""
        return replace(self, dataset=self.dataset[start:stop:step])

    def shuffle(self, buffer: int, seed: int, *, anew: bool = True) -> Indexed | Streamed:
        """The records in an order drawn over all of them; if `anew`, another one in each repetition and pass."""
        # Grain cannot draw from infinitely many; a stream is shuffled within a buffer, as TensorFlow does it.
        if self.length() is None:
            return self.stream().shuffle(buffer, seed, anew=anew)
        shuffled = self.dataset.shuffle(seed=seed)
        return replace(self, dataset=shuffled if anew else shuffled.repeat(1, reseed_each_epoch=False))

    def cache(self) -> Indexed:
        """The records, each read once."""
        return replace(self, dataset=grain.MapDataset.source(_Kept(self.dataset)))

    def stream(self) -> Streamed:
        """The records one after the other."""
        return Streamed(self.open, self.rows_vary)


@dataclass(frozen=True)
class Streamed:
    """Records one after the other; `open` starts a pass of that number, on which the order of shuffles depends."""

    open: Callable[[int], Iterator[Nest]]
    rows_vary: bool = False
    """True if records are batches of which the last may be smaller."""

    def __iter__(self) -> Iterator[Nest]:
        return self.open(0)

    def length(self) -> int | None:
        """Not known."""
        return None

    def map(self, function: Callable[[Nest], Nest]) -> Streamed:
        """Each record changed."""
        return Streamed(lambda epoch: map(function, self.open(epoch)), self.rows_vary)

    def filter(self, predicate: Callable[[Nest], bool]) -> Streamed:
        """The records for which it holds."""
        return Streamed(lambda epoch: filter(predicate, self.open(epoch)), self.rows_vary)

    def batch(self, size: int, drop_remainder: bool) -> Streamed:
        """Records joined along a new first axis."""
        gathered = self.gather(size, drop_remainder)
        return gathered.map(lambda rows: jax.tree.map(lambda *leaves: np.stack(leaves), *rows))

    def gather(self, size: int, drop_remainder: bool) -> Streamed:
        """Records in lists of `size`."""

        def lists(epoch: int) -> Iterator[Nest]:
            records = self.open(epoch)
            while rows := list(itertools.islice(records, size)):
                if len(rows) < size and drop_remainder:
                    return
                yield rows

        return Streamed(lists, not drop_remainder)

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

        return Streamed(repeated, self.rows_vary)

    def cut(self, start: int, stop: int | None, step: int = 1) -> Streamed:
        """Some of the records."""
        return Streamed(lambda epoch: itertools.islice(self.open(epoch), start, stop, step), self.rows_vary)

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

        return Streamed(shuffled, self.rows_vary)

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

        return Streamed(records, self.rows_vary)

    def stream(self) -> Streamed:
        """Itself."""
        return self


Pipeline = Indexed | Streamed


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
