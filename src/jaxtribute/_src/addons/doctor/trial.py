"""`jaxtribute doctor --test`: an all-reduce and an input pipeline over the cluster, for some seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxtribute import Strategy, function
from jaxtribute._src.addons.doctor.report import Finding, Level, Situation
from jaxtribute.cluster_resolver import ClusterResolver
from jaxtribute.errors import ClusterError, JaxtributeError
from jaxtribute.typing import Leaf

SECONDS = 10.0
WORKERS = 2
"""Number of processes of a rehearsal if there is no cluster."""
SIZES = (256, 1 << 20)
"""Numbers of four bytes to reduce."""
_EXAMPLES, _BATCH = 1000, 64


def check(situation: Situation, seconds: float = SECONDS) -> Iterator[Finding]:
    """Joins the cluster of the environment; without one, makes one of two processes on this machine.

    Args:
        situation: Where the doctor is.
        seconds: How long to reduce.
    """
    from jaxtribute._src.addons.testing.runner import run_multi_process

    try:
        if situation.roster is not None and situation.detection is not None:
            found = rehearse(seconds, situation.detection.resolver)
        else:
            yield Finding(Level.FACT, "test", f"without a cluster: {WORKERS} processes on the CPU of this machine")
            found = run_multi_process(rehearse, workers=WORKERS, args=(seconds,), timeout_s=120 + 2 * seconds)[0]
    except (JaxtributeError, RuntimeError, ValueError, AssertionError) as error:
        yield Finding.of_error("test", str(error))
        return
    reduced = ", ".join(f"{size >> 10} KB in {took * 1e3:.2f} ms" for size, took in found["reduce"].items())
    yield Finding(Level.GOOD, "all-reduce", f"{found['replicas']} replicas: {reduced} (medians of {found['rounds']})")
    yield Finding(Level.GOOD, "input", f"{_EXAMPLES} examples, each exactly once, in {found['input_s'] * 1e3:.0f} ms")


def rehearse(seconds: float, resolver: ClusterResolver | None = None) -> dict[str, Any]:
    """Runs the rehearsal of one worker.

    Args:
        seconds: How long to reduce.
        resolver: Says who the workers are; `TF_CONFIG` by default.

    Returns:
        The number of replicas and of rounds, median seconds by bytes reduced, and seconds of the input.

    Raises:
        ClusterError: A sum is wrong, or an example was lost.
    """
    from jaxtribute import MultiWorkerMirroredStrategy

    strategy = MultiWorkerMirroredStrategy(resolver)
    rounds = [_Round(strategy, size) for size in SIZES]
    times: dict[int, list[float]] = {4 * one.size: [] for one in rounds}
    end = time.monotonic() + seconds
    # Clocks differ, and a worker that stopped alone would leave the others in a collective.
    while _all_say(strategy, time.monotonic() < end):
        for one in rounds:
            times[4 * one.size].append(one.run())
    start = time.monotonic()
    _read_all(strategy)
    return {
        "replicas": strategy.num_replicas_in_sync,
        "rounds": min(map(len, times.values())),
        "reduce": {size: float(np.median(found or [0.0])) for size, found in times.items()},
        "input_s": time.monotonic() - start,
    }


class _Round:
    """One all-reduce of an array on every replica."""

    def __init__(self, strategy: Strategy, size: int) -> None:
        self.size = size
        count = strategy.num_replicas_in_sync
        # Each replica gives its own number: a lost, doubled or swapped one changes the sum.
        self._right = count * (count + 1) / 2
        self._values = strategy.experimental_distribute_values_from_function(
            lambda context: np.full(size, context.replica_id_in_sync_group + 1, np.float32)
        )

        @function
        def total(values: Leaf) -> Any:
            return strategy.reduce("SUM", values, axis=None)

        self._total = total
        self.run()  # compiles

    def run(self) -> float:
        """Seconds that it took."""
        start = time.monotonic()
        result = np.asarray(self._total(self._values))
        took = time.monotonic() - start
        if not np.all(result == self._right):
            raise ClusterError(
                f"an all-reduce of {self.size} numbers gave {result[result != self._right][0]}, not {self._right}. "
                "HINT: see that all workers run the same versions, and test the machines' memory and network."
            )
        return took


def _all_say(strategy: Strategy, go_on: bool) -> bool:
    """True if all workers would go on: each has its own clock, and all must stop at the same round."""
    votes = strategy.experimental_distribute_values_from_function(lambda _: np.float32(go_on))
    return float(strategy.reduce("SUM", votes, axis=None)) == strategy.num_replicas_in_sync


def _read_all(strategy: Strategy) -> None:
    numbers = np.arange(_EXAMPLES, dtype=np.float32)
    dataset = strategy.experimental_make_numpy_dataset((numbers, np.ones_like(numbers))).batch(_BATCH)
    total = count = 0.0
    for some, ones in strategy.experimental_distribute_dataset(dataset):
        total += float(strategy.reduce("SUM", some, axis=0))
        count += float(strategy.reduce("SUM", ones, axis=0))
    # By the sum alone a lost example and a doubled one could make up for each other.
    if (total, count) != (numbers.sum(), _EXAMPLES):
        raise ClusterError(
            f"{count:.0f} of {_EXAMPLES} examples came, with a sum of {total:.0f} instead of {numbers.sum():.0f}. "
            "HINT: see that all workers run the same versions."
        )
