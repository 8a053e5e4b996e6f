"""Any iterable of batches: lists, generators, objects with `__iter__`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from jaxtribute._src.core.input.batches import Batch, as_batch, copied
from jaxtribute._src.core.input.sources import register_source
from jaxtribute._src.core.input.sources.base import Source
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.types import Json, Nest
from jaxtribute.errors import InputError


class IterableSource(Source):
    """An iterable of batches. A one-shot iterator gives one pass; a sequence can be entered anywhere.

    Args:
      iterable: gives the batches.
    """

    name = "iterable of batches"

    def __init__(self, iterable: Iterable[Nest]) -> None:
        self._iterable = iterable
        self.reads = "share" if isinstance(iterable, (list, tuple)) else "all"  # what lies in memory costs nothing
        self._peeked: Iterator[Nest] | None = None
        self._is_begun = False

    def open(self, shard: Shard) -> CountingStream:
        """Starts a pass; a worker reads all of it, and its share is cut from each batch."""
        if isinstance(self._iterable, Sequence):
            return CountingStream(iter(self._iterable), self._iterable)
        if isinstance(self._iterable, Iterator):
            peeked, self._peeked = self._peeked, None
            rest = self._iterable if peeked is None else peeked
            begun, self._is_begun = self._is_begun, True
            # In a chain, so that closing the stream leaves the user's own generator open.
            return CountingStream(_unless_ended(rest) if begun else itertools.chain(rest))
        return CountingStream(iter(self._iterable), reiterable=True)

    def first(self) -> Nest | None:
        """The first element, put back where it was taken from a one-shot iterator."""
        if not isinstance(self._iterable, Iterator):
            return super().first()
        # The element goes back in front of a one-shot iterator.
        iterator: Iterator[Nest] = self._iterable if self._peeked is None else self._peeked
        try:
            element = copied(as_batch(next(iterator)).tree)
        except StopIteration:
            return None
        self._peeked = itertools.chain([element], iterator)
        return element

    def length(self) -> tuple[int, int] | None:
        """Batches and examples of one pass, if they are known."""
        if not isinstance(self._iterable, Sequence):
            return None
        # A sequence can be walked beforehand: nothing of it is used up.
        totals = [as_batch(element).total for element in self._iterable]
        return None if None in totals else (len(totals), sum(total or 0 for total in totals))

    def knows_end(self) -> bool:
        """True if the number of batches is the same on every worker."""
        return isinstance(self._iterable, Sequence)


def _unless_ended(iterator: Iterator[Nest]) -> Iterator[Nest]:
    """The rest of a one-shot iterator that an earlier pass has begun.

    Raises:
      InputError: nothing is left; a loop over epochs would train for the first one only.
    """
    first = next(iterator, None)
    if first is None:
        raise InputError(
            "another pass over a one-shot iterator, which has ended. HINT: distribute a list of batches, an object "
            "whose __iter__ begins anew, or a dataset; or distribute a new iterator for each epoch."
        )
    yield from itertools.chain([first], iterator)  # in a chain, which leaves the user's generator open


class CountingStream:
    """Counts the batches that an iterator gives, and goes back to a count if it can.

    Args:
      iterator: the batches.
      sequence: what it iterates over, if that can be entered anywhere.
      reiterable: whether another pass gives the same batches, so that reading and dropping leads to a position.
      why_not: why there is no going back, for the error.
    """

    def __init__(
        self,
        iterator: Iterator[Nest],
        sequence: Sequence[Nest] | None = None,
        *,
        reiterable: bool = False,
        why_not: str = "a one-shot iterator cannot be entered again",
    ) -> None:
        self._iterator = iterator
        self._sequence = sequence
        self._reiterable = reiterable
        self._why_not = why_not
        self._count = 0

    def __next__(self) -> Batch:
        batch = as_batch(next(self._iterator))
        self._count += 1
        # Its producer may write the next batch into the same memory while this one is still on its way.
        return Batch(copied(batch.tree), batch.total)

    def get_state(self) -> dict[str, int]:
        """The position."""
        return {"batches": self._count}

    def set_state(self, state: Json) -> None:
        """Goes to a position."""
        count = int(state["batches"])
        if self._sequence is not None:
            self._iterator = iter(self._sequence[count:])
        elif self._reiterable and count >= self._count:
            # Read and dropped: there is no other way into the middle of an iterable.
            skipped = sum(1 for _ in itertools.islice(self._iterator, count - self._count))
            if skipped < count - self._count:
                raise InputError(
                    f"the position is after {count} batches, and the dataset has only {self._count + skipped}. "
                    "HINT: restore onto the dataset that it was saved from."
                )
        elif count != self._count:
            raise InputError(
                f"cannot go to batch {count} from batch {self._count}: {self._why_not}. HINT: use a Grain dataset or "
                "a list of batches, or skip the batches yourself and restore at the same count."
            )
        self._count = count

    def close(self) -> None:
        """Closes what is read from."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


def _accepts(dataset: object) -> bool:
    return isinstance(dataset, Iterable) and not isinstance(dataset, (str, bytes))  # whose letters are no batches


register_source("any iterable of batches", _accepts, IterableSource, rank=100)
