"""How workers agree on the end of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

StepRows: TypeAlias = "tuple[int, ...] | None"
"""Rows that a worker's replicas have in a step, or None for a worker without data."""


class StepAgreement(Protocol):
    """What the workers tell each other before each step.

    A strategy over several workers gives one to `distribute_dataset`. Every worker calls it once a step, for as long
    as any worker has data: first for step 0, then for step 1, and so on. It is called ahead of time, in the thread
    that prefetches, so it must not use collectives of the devices; the coordination service's key-value store suits.
    It is not used where all workers are sure to have the same number of batches, or for a single worker.
    """

    def __call__(self, step: int, rows: StepRows, /) -> Sequence[StepRows]:
        """Gives this worker's rows of a step, and returns every worker's, in the order of workers.

        Args:
          step: counts from 0 in each iterator, or from where it was restored.
          rows: rows of each local replica, or None at the end of this worker's data.
        """
        ...


def alone(step: int, rows: StepRows) -> Sequence[StepRows]:
    """The agreement of a single worker with itself."""
    del step
    return (rows,)
