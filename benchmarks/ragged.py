"""An epoch with a ragged last batch against the same epoch with `drop_remainder`.

    python -m benchmarks.ragged --devices 4

Digits MLP (64-256-10), 1,797 examples in batches of 64: 28 whole batches, and one of 5 over the replicas. The
comparison gives both the same number of steps: the `drop_remainder` epoch repeats a whole batch in place of the last.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import optax

import jaxtribute as jd
from benchmarks.harness import median_ratio
from benchmarks.mlp import LEARNING_RATE, MOMENTUM, compiled, problem

EXAMPLES, BATCH, LAYERS = 1797, 64, (64, 256, 10)


def make_step(strategy: jd.Strategy) -> tuple[Any, list[jd.Variable]]:
    """A compiled training step on `(images, labels)`, any number of them; returns the summed loss."""
    step, variables, _ = compiled(strategy, LAYERS, BATCH, optax.sgd(LEARNING_RATE, momentum=MOMENTUM))
    return step, variables


def epoch_of(step: Callable[..., Any], batches: list[tuple[Any, Any]]) -> Callable[[], float]:
    """Runs one epoch; returns its seconds."""

    def run() -> float:
        start = time.perf_counter()
        loss = None
        for images, labels in batches:
            loss = step(images, labels)
        float(loss)  # pyright: ignore[reportArgumentType]
        return time.perf_counter() - start

    return run


def main() -> None:
    """Prints the epochs' times, what the ragged batch costs to compile, and how exact it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=41)
    arguments = parser.parse_args()
    jd.config.set_logical_cpu_devices(arguments.devices)
    strategy = jd.MirroredStrategy([f"cpu:{i}" for i in range(arguments.devices)])
    _, images, labels = problem(LAYERS, EXAMPLES)
    data = [(images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, EXAMPLES, BATCH)]
    batches = list(strategy.experimental_distribute_dataset(data))

    step, variables = make_step(strategy)
    alone, single = make_step(jd.OneDeviceStrategy("cpu:0"))
    compiles: list[float] = []
    for batch in (batches[0], batches[-1]):
        start = time.perf_counter()
        float(step(*batch))
        compiles.append(time.perf_counter() - start)
    for batch in (data[0], data[-1]):
        alone(*batch)
    gap = max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in zip(variables, single, strict=True))

    contenders = {
        "ragged": epoch_of(step, batches),
        "repeated": epoch_of(step, [*batches[:-1], batches[0]]),
        "dropped": epoch_of(step, batches[:-1]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(arguments.rounds + 3):
        for name, epoch in contenders.items():
            taken = epoch()
            if turn >= 3:
                seconds[name].append(taken)
    count = step.experimental_get_tracing_count()
    print(f"first step {compiles[0]:.2f} s, first ragged step {compiles[1]:.2f} s; {count} traces in all epochs")
    print(f"after a whole and a ragged step the variables are within {gap:.1e} of one device's")
    for name, steps in (("ragged", len(batches)), ("repeated", len(batches)), ("dropped", len(batches) - 1)):
        median = statistics.median(seconds[name])
        print(f"{name:9} {1e3 * median:7.2f} ms an epoch, {1e3 * median / steps:.3f} ms a step")
    for name in ("dropped", "repeated"):
        ratio = median_ratio(seconds["ragged"], seconds[name])
        print(f"ragged / {name}: {ratio:.3f}")


if __name__ == "__main__":
    main()
