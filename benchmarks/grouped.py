"""A step whose replicas have several devices each, against the same step by `jax.jit` and `NamedSharding`.

python -m benchmarks.grouped

An MLP of 784-2048-2048-10 with SGD and momentum, its first products split by columns and by rows, on logical CPU
devices. Both end with equal parameters, or nothing is measured; then turns of both alternate.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table

import jaxtribute as jd
from benchmarks.mlp import LEARNING_RATE, MOMENTUM, loss_sum, problem

LAYERS, BATCH = (784, 2048, 2048, 10), 64
LAYOUTS: list[tuple[Any, ...]] = [(None, "model"), ("model",), ("model",), (), (), ()]
"""Of weights and biases by turns: columns with their biases, then rows, then whole."""
SHAPES = [(1, 2), (2, 2), (1, 4)]
"""Replicas, and devices of each."""
BAR = 1.05


def by_library(replicas: int, each: int) -> tuple[Callable[[], Any], Callable[[], list[Any]]]:
    """A step, and what gives the parameters."""
    params, images, labels = problem(LAYERS, BATCH)
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(replicas * each)], devices_per_replica=each)
    with strategy.scope():
        variables = [jd.Variable(p, layout=layout) for p, layout in zip(params, LAYOUTS, strict=True)]
        optimizer = jd.Optimizer(optax.sgd(LEARNING_RATE, MOMENTUM), variables)

    def replica_step(images: Any, labels: Any) -> Any:
        def mean_loss() -> Any:
            return loss_sum([v.read_value() for v in variables], images, labels) / BATCH

        value, grads = jd.value_and_grad(mean_loss, variables)()
        optimizer.apply_gradients(grads)
        return value

    @jd.function
    def step(images: Any, labels: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, (images, labels)), axis=None)

    data = [next(iter(strategy.experimental_distribute_dataset([array]))) for array in (images, labels)]
    return lambda: step(*data), lambda: [v.numpy() for v in variables]


def by_hand(replicas: int, each: int) -> tuple[Callable[[], Any], Callable[[], list[Any]]]:
    """The same, with the same placements."""
    params, images, labels = problem(LAYERS, BATCH)
    mesh = Mesh(np.array(jax.devices()[: replicas * each]).reshape(replicas, each), ("data", "model"))

    def put(value: Any, *spec: Any) -> Any:
        return jax.device_put(value, NamedSharding(mesh, P(*spec)))

    transform = optax.sgd(LEARNING_RATE, MOMENTUM)
    placed = [put(p, *layout) for p, layout in zip(params, LAYOUTS, strict=True)]
    by_shape = {one.shape: one.sharding for one in placed}
    state = jax.tree.map(lambda slot: jax.device_put(slot, by_shape[slot.shape]), transform.init(placed))
    images, labels = put(images, "data"), put(labels, "data")

    @jax.jit(donate_argnums=(0, 1), out_shardings=(*jax.tree.map(lambda x: x.sharding, (placed, state)), None))
    def step(params: Any, state: Any, images: Any, labels: Any) -> Any:
        value, grads = jax.value_and_grad(lambda p: loss_sum(p, images, labels) / BATCH)(params)
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    held = [placed, state]

    def run() -> Any:
        *held[:], value = step(*held, images, labels)
        return value

    return run, lambda: [np.asarray(p) for p in held[0]]


def turn(step: Callable[[], Any], steps: int) -> float:
    """Seconds a step."""
    start = time.perf_counter()
    for _ in range(steps - 1):
        step()
    jax.block_until_ready(step())
    return (time.perf_counter() - start) / steps


def measure(replicas: int, each: int, rounds: int, steps: int) -> tuple[float, float, float]:
    """Median milliseconds of a step of the library and by hand, and the median ratio of neighbouring turns."""
    (library, mine), (hand, theirs) = by_library(replicas, each), by_hand(replicas, each)
    for _ in range(4):
        np.testing.assert_allclose(np.asarray(library()), np.asarray(hand()), rtol=1e-4)
    for one, other in zip(mine(), theirs(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    pairs = [(turn(library, steps), turn(hand, steps)) for _ in range(rounds)]
    ratio = statistics.median(a / b for a, b in pairs)
    return statistics.median(a for a, _ in pairs) * 1e3, statistics.median(b for _, b in pairs) * 1e3, ratio


def main() -> int:
    """Prints the table; fails where a ratio is above the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    jd.config.set_logical_cpu_devices(8)
    table = Table("replicas x devices", "jaxtribute, ms", "by hand, ms", "ratio", title="-".join(map(str, LAYERS)))
    worst = 0.0
    for replicas, each in SHAPES:
        library, hand, ratio = measure(replicas, each, options.rounds, options.steps)
        worst = max(worst, ratio)
        table.add_row(f"{replicas} x {each}", f"{library:.2f}", f"{hand:.2f}", f"{ratio:.2f}")
    Console().print(table)
    return int(worst > BAR)


if __name__ == "__main__":
    sys.exit(main())
