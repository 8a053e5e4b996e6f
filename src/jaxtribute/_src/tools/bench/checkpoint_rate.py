"""Speed of variables on their way to disk and back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxtribute._src.strategies.base import Strategy
from jaxtribute._src.values.variable import Variable

_PARTS = 8


@dataclass(frozen=True, slots=True)
class CheckpointRate:
    """Saving and restoring variables of one size.

    Attributes:
      nbytes: bytes of all variables, one copy each.
      held: seconds for which `save` holds the training up.
      saved: seconds until the checkpoint is complete.
      restored: seconds of a restore.
    """

    nbytes: int
    held: float
    saved: float
    restored: float


def measure(strategy: Strategy, nbytes: int, directory: Path, rounds: int) -> CheckpointRate:
    """Saves and restores variables of `nbytes` bytes in all.

    Args:
      strategy: where the variables are.
      nbytes: how large.
      directory: an existing folder, on a disk that all workers share.
      rounds: how often; one more goes before.
    """
    from jaxtribute._src.checkpoint.checkpoint import Checkpoint

    size = max(nbytes // 4 // _PARTS, 1)
    random = np.random.default_rng(0)  # zeros would be compressed to nothing
    with strategy.scope():
        variables = [Variable(random.random(size, np.float32), name=f"part_{i}") for i in range(_PARTS)]
    checkpoint = Checkpoint(variables=variables)
    path = str(directory / "checkpoint")
    held: list[float] = []
    saved: list[float] = []
    restored: list[float] = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        # It returns once the values are safe from the training; the files are written meanwhile.
        checkpoint.write(path)
        held.append(time.perf_counter() - start)
        checkpoint.wait()
        saved.append(time.perf_counter() - start)
        restored.append(_seconds(lambda: checkpoint.restore(path)))
    return CheckpointRate(size * 4 * _PARTS, *(statistics.median(one[1:]) for one in (held, saved, restored)))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
