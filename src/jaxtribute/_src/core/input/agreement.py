"""Agreement of the workers on the end of the data."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

StepRows: TypeAlias = "tuple[int, ...] | None"
"""Rows that a worker's replicas have in a step, or None for a worker without data."""


class StepAgreement(Protocol):
    """Messages of the workers before each step of one iterator.

    Every worker calls it once a step, for as long as any worker has data: for step 0, then for step 1, and so on. It
    is called ahead of time, in the thread that prefetches, so it must not use collectives of the devices; the
    coordination service's key-value store suits. It is not used where all workers are sure to have the same number of
    batches, or for a single worker.
    """

    def __call__(self, step: int, rows: StepRows, /) -> Sequence[StepRows]:
        """Gives this worker's rows of a step, and returns every worker's, in the order of workers.

        Args:
          step: counts from 0 in each iterator, or from where it was restored.
          rows: rows of each local replica, or None at the end of this worker's data. Once, behind a step in which some
            workers have data and others have none, all pass other numbers, of any length, by a number below 0.
        """
        ...


Agreements: TypeAlias = Callable[[], StepAgreement]
"""Makes the agreement of an iterator. All workers make their iterators in the same order."""


def alone() -> StepAgreement:
    """The agreement of a single worker with itself."""
    return lambda _, rows: (rows,)


class KeyValueStore(Protocol):
    """The methods that are used of a store that all workers reach, as a `Cluster` has it."""

    def set(self, key: str, value: str, /) -> None:
        """Sets a key."""
        ...

    def get(self, key: str, timeout_s: float, /, *, of: int) -> str:
        """Waits for a key that worker `of` sets, and returns its value."""
        ...

    def delete(self, key: str, /) -> None:
        """Deletes a key."""
        ...

    def by_rank(self, place: str, /) -> dict[int, str]:
        """The values of the keys `{place}/{worker}` that are set."""
        ...


class KeyValueAgreements:
    """Agreements over a key-value store that all workers reach, for the iterators of one dataset.

    Args:
      store: a store that all workers reach.
      name: a name for the dataset, the same on all workers and no other dataset's.
      workers: how many there are.
      worker: this one.
      timeout_s: seconds to wait for the slowest worker.
    """

    def __init__(self, store: KeyValueStore, name: str, workers: int, worker: int, timeout_s: float) -> None:
        self._store = store
        self._name = name
        self._workers = workers
        self.worker = worker
        self._timeout_s = timeout_s
        self._iterators = 0

    def others(self, own: str) -> dict[int, str]:
        """Tells the first worker of the dataset, or as the first one all others; what those have told before."""
        mine, theirs = ("first", "others") if self.worker == 0 else ("others", "first")
        self._store.set(f"{self._name}/{mine}/{self.worker}", own)
        return self._store.by_rank(f"{self._name}/{theirs}")

    def __call__(self) -> StepAgreement:
        """Makes the agreement of the next iterator."""
        # Numbered: all workers make their iterators in the same order, and meet at the same keys.
        prefix = f"{self._name}/{self._iterators}"
        self._iterators += 1
        own: list[str] = []

        def agree(step: int, rows: StepRows, /) -> Sequence[StepRows]:
            own.append(f"{prefix}/{step}/{self.worker}")
            # Told before anything is asked: otherwise all would wait for the first to speak.
            self._store.set(own[-1], json.dumps(rows))
            steps: list[StepRows] = []
            for worker in range(self._workers):
                told = json.loads(self._store.get(f"{prefix}/{step}/{worker}", self._timeout_s, of=worker))
                steps.append(None if told is None else tuple(told))
            if len(own) > 1:
                # All are at this step, so all have read everything of the step before.
                self._store.delete(own.pop(0))
            return steps

        return agree
