"""Steps with large embeddings on 2 processes: tables over the replicas beside dense gradients, lazy and exact Adam.

python -m benchmarks.embeddings

26 features of a batch of 1,024 are looked up by Zipf ids, as a model of clicks does; the dense layer behind is small.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import jaxtribute as jd

FEATURES, BATCH, BATCHES = 26, 1024, 4
DENSE_BAR, TENFOLD_BAR, MEMORY_BAR_GB = 1 / 5, 1.1, 3.0
SGD, ADAM = "adagrad", "adam"


@dataclass
class Case:
    """A step that is measured."""

    name: str
    rows: int
    width: int
    optimizer: str
    kind: str = "lazy"


CASES = [
    Case("table", 1_000_000, 32, SGD),
    Case("dense gradients", 1_000_000, 32, SGD, "dense"),
    Case("lazy Adam", 1_000_000, 16, ADAM),
    Case("exact Adam", 1_000_000, 16, ADAM, "exact"),
    Case("lazy Adam, ten times the rows", 10_000_000, 16, ADAM),
]
QUICK = [Case("table", 10_000, 8, SGD), Case("dense gradients", 10_000, 8, SGD, "dense")]


def batches(rows: int, rank: int) -> list[Any]:
    """Ids of one worker: few come often, as in a log of clicks; each feature has its own part of the table.

    Larger tables have the same ids further apart, so that steps have as many rows.
    """
    rng = np.random.default_rng(rank)
    found: list[Any] = []
    for _ in range(BATCHES):
        own = min(rows, 1_000_000) // FEATURES
        ids = rng.zipf(1.1, (BATCH // 2, FEATURES)) % own + np.arange(FEATURES) * own
        ids *= max(1, rows // 1_000_000)
        found.append((ids.astype(np.int32), rng.integers(0, 2, BATCH // 2).astype(np.float32)))
    return found


def measure(case: dict[str, Any], rounds: int, steps: int) -> dict[str, Any]:
    """Trains on a worker; gives seconds a step of each round, the loss, and the memory of the process."""
    chosen = Case(**case)
    strategy = jd.MultiWorkerMirroredStrategy()
    with strategy.scope():
        if chosen.kind == "dense":
            first = np.random.default_rng(0).normal(scale=0.05, size=(chosen.rows, chosen.width)).astype(np.float32)
            table: Any = jd.Variable(first, name="table")
        else:
            updates: Any = chosen.kind
            table = jd.nn.ShardedTable(chosen.rows, chosen.width, name="table", updates=updates)
        dense = jd.Variable(np.full(FEATURES * chosen.width, 0.01, np.float32), name="dense")
        transform = optax.adagrad(0.05) if chosen.optimizer == SGD else optax.adam(1e-3)
        optimizer = jd.Optimizer(transform, [table, dense])

    def replica(ids: Any, clicks: Any) -> Any:
        def loss() -> Any:
            rows = table.read_value()[ids] if chosen.kind == "dense" else jd.nn.embedding_lookup(table, ids)
            scores = rows.reshape(ids.shape[0], -1) @ dense
            return jd.nn.compute_average_loss(
                optax.sigmoid_binary_cross_entropy(scores, clicks), global_batch_size=BATCH
            )

        value, gradients = jd.value_and_grad(loss, [table, dense])()
        optimizer.apply_gradients(gradients)
        return value

    step = jd.function(lambda batch: strategy.reduce("SUM", strategy.run(replica, batch), axis=None))
    local = batches(chosen.rows, jax.process_index())
    placed: list[Any] = []
    for batch in local:
        pair = tuple(
            strategy.experimental_distribute_values_from_function(lambda _, one=one: jnp.asarray(one)) for one in batch
        )
        placed.append(pair)
    value: Any = None
    for batch in placed:
        value = step(batch)
    jax.block_until_ready(value)
    seconds: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        for number in range(steps):
            value = step(placed[number % BATCHES])
        jax.block_until_ready(value)
        seconds.append((time.perf_counter() - start) / steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "loss": float(value), "peak": peak}


def main() -> None:
    """Prints a table; ends with status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small tables and few steps: to see that it runs")
    parser.add_argument("--only", default="", help="the cases whose names begin so")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cases = [case for case in (QUICK if arguments.quick else CASES) if case.name.startswith(arguments.only)]
    figures: dict[str, Any] = {}
    shown = Table("case", "rows x width", "step", "of the first", "loss", "peak memory")
    for case in cases:
        with jd.testing.MultiProcessRunner(workers=2, devices=1, timeout_s=600) as runner:
            found = runner.run(measure, (asdict(case), 2 if arguments.quick else 5, 4))[0]
        figures[case.name] = {**asdict(case), **found, "median": statistics.median(found["seconds"])}
        ratio = figures[case.name]["median"] / next(iter(figures.values()))["median"]
        size, milliseconds = f"{case.rows:,} x {case.width}", f"{figures[case.name]['median'] * 1e3:.1f} ms"
        shown.add_row(
            case.name, size, milliseconds, f"{ratio:.2f}", f"{found['loss']:.4f}", f"{found['peak'] / 1e9:.2f} GB"
        )
    Console(width=110).print(shown)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    if not arguments.quick and not arguments.only:
        median = {name: one["median"] for name, one in figures.items()}
        assert median["table"] <= DENSE_BAR * median["dense gradients"], "more than a fifth of the dense step"
        large = "lazy Adam, ten times the rows"
        assert median[large] <= TENFOLD_BAR * median["lazy Adam"], "ten times the rows take more than 10 % more"
        assert figures[large]["peak"] < MEMORY_BAR_GB * 1e9, "more than 3 GB a process"


if __name__ == "__main__":
    main()
