"""Speed of examples on their way onto the devices, against `jax.device_put` of slices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxtribute._src.strategies.base import Strategy

_FEATURES = 784


@dataclass(frozen=True, slots=True)
class InputRate:
    """A pass over examples of 784 float32 numbers in host memory.

    Attributes:
      batch: examples in a global batch.
      examples: how many a pass has.
      seconds: of a pass through a distributed dataset.
      bare: of putting the same slices onto this process's devices; None where there are several processes.
    """

    batch: int
    examples: int
    seconds: float
    bare: float | None

    @property
    def rate(self) -> float:
        """Examples a second."""
        return self.examples / self.seconds

    @property
    def bytes_rate(self) -> float:
        """Bytes a second."""
        return self.rate * _FEATURES * 4


def measure(strategy: Strategy, batch: int, batches: int, rounds: int) -> InputRate:
    """Measures passes over `batches` batches of `batch` examples, a multiple of the replicas."""
    mesh = strategy.extended.mesh
    batch = -(-batch // mesh.size) * mesh.size
    data = np.ones((batch * batches, _FEATURES), np.float32)
    dataset = strategy.experimental_distribute_dataset(strategy.experimental_make_numpy_dataset(data).batch(batch))

    def library() -> Any:
        return dataset.reduce(None, lambda _, element: element)

    def bare() -> Any:
        element = None
        for start in range(0, len(data), batch):
            element = jax.device_put(data[start : start + batch], mesh.split)
        return element

    # `jax.device_put` cannot write to other processes' devices.
    alone = len(mesh.local_ids) == mesh.size
    passes: list[Callable[[], Any]] = [library, bare] if alone else [library]
    taken: list[list[float]] = [[] for _ in passes]
    for turn in range(rounds + 1):
        for place, one in enumerate(passes):
            start = time.perf_counter()
            jax.block_until_ready(one())
            # The first turn starts threads and fills caches.
            if turn:
                taken[place].append(time.perf_counter() - start)
    seconds = [statistics.median(one) for one in taken]
    return InputRate(batch, len(data), seconds[0], seconds[1] if alone else None)
