"""Any iterable of batches: lists, generators, objects with `__iter__`."""

from __future__ import annotations

import itertools
import threading
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
        self._iterable = _Once(iterable) if isinstance(iterable, Iterator) else iterable
        self.reads = "share" if isinstance(iterable, (list, tuple)) else "all"  # what lies in memory costs nothing
        self._is_begun = False

    def open(self, shard: Shard) -> CountingStream:
        """Starts a pass; a worker reads all of it, and its share is cut from each batch."""
        if isinstance(self._iterable, Sequence):
            return CountingStream(iter(self._iterable), self._iterable)
        if isinstance(self._iterable, _Once):
            begun, self._is_begun = self._is_begun, True
            return CountingStream(_unless_ended(self._iterable) if begun else self._iterable)
        return CountingStream(iter(self._iterable), reiterable=True)

    def first(self) -> Nest | None:
        """The first element; a one-shot iterator gives it to the pass all the same."""
        return self._iterable.first() if isinstance(self._iterable, _Once) else super().first()

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


class _Once(Iterator[Nest]):
    """A one-shot iterator, whose first element can be looked at before, while and after a pass reads it.

    Closing a pass leaves the user's own generator open.
    """

    def __init__(self, iterator: Iterator[Nest]) -> None:
        self._iterator = iterator
        self._ahead: list[Nest] = []
        self._first: Nest | None = None
        # Passes are read by a thread. A generator that asks for itself gets Python's error, and does not hang.
        self._lock = threading.RLock()

    def __next__(self) -> Nest:
        with self._lock:
            element = self._ahead.pop() if self._ahead else next(self._iterator)
            if self._first is None:
                self._first = copied(as_batch(element).tree)
            return element

    def first(self) -> Nest | None:
        """The first element, or None if there is none."""
        with self._lock:
            if self._first is None:
                self._ahead.extend(itertools.islice(self, 1))
            return self._first


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
    yield first
    yield from iterator


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
