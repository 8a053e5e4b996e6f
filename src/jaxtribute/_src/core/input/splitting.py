"""Cuts a batch for the replicas: sizes and bounds, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's place among the workers and their replicas.

    Every worker has the same number of replicas, and worker `w` has those numbered from `w * local`.

    Attributes:
      workers: the number of workers.
      worker: the number of this one.
      replicas: the number of replicas over all workers.
    """

    workers: int = 1
    worker: int = 0
    replicas: int = 1

    @property
    def local(self) -> int:
        """Replicas of this worker."""
        return self.replicas // self.workers

    @property
    def first(self) -> int:
        """Number of this worker's first replica."""
        return self.worker * self.local

    def bounds(self, rows: int) -> tuple[int, int]:
        """The rows `[start, stop)` of a global batch that fall to the replicas of this worker."""
        size = -(-rows // self.replicas)
        return min(self.first * size, rows), min((self.first + self.local) * size, rows)


def slice_sizes(rows: int, replicas: int) -> tuple[int, ...]:
    """Rows of each replica: full slices first, then what is left, then none (5 over 4: 2, 2, 1, 0).

    Source: the rebatching of `tf.distribute.Strategy.experimental_distribute_dataset`.
    """
    size = -(-rows // replicas)
    return tuple(min(size, max(rows - replica * size, 0)) for replica in range(replicas))


def cycle_sizes(rows: int, shard: Shard) -> tuple[int, ...]:
    """Rows of the slices into which a worker cuts a global batch that it has to itself.

    Such a batch feeds the worker for as many steps as there are workers. Slices differ by one row at most, and
    the workers start at different places of the cycle, so that the slices of one step add up to `rows`.

    Source: the rebatching of a file-sharded `tf.data.Dataset`.
    """
    small, larger = divmod(rows, shard.replicas)
    sizes = [small + 1] * larger + [small] * (shard.replicas - larger)
    return tuple(sizes[shard.first :] + sizes[: shard.first])


def fill(rows: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Gives `rows` out in the given sizes, in order, until none are left."""
    given: list[int] = []
    for size in sizes:
        given.append(min(size, rows))
        rows -= given[-1]
    return tuple(given)
