"""The model of clicks by this library: its table over the workers, or a variable with dense gradients."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import jaxtribute as jd
from benchmarks.harness import serve
from benchmarks.peers import clicks
from benchmarks.peers.arguments import Step, timed


def step_of(kind: str, asked: clicks.Asked, strategy: Any) -> Step:
    """The step of a table, or with dense gradients, by Adagrad; or of a table by lazy or exact Adam."""
    dense_gradients, adam = kind == "dense gradients", kind.endswith("Adam")
    with strategy.scope():
        if dense_gradients:
            table: Any = jd.Variable(clicks.first_rows(asked), name="table")
        else:
            first = None if adam else clicks.first_rows(asked)
            updates: Any = "exact" if kind == "exact Adam" else "lazy"
            table = jd.nn.ShardedTable(asked.rows, asked.width, first, name="table", updates=updates)
        dense = jd.Variable(clicks.first_dense(asked), name="dense")
        adagrad = optax.adagrad(clicks.RATE, initial_accumulator_value=0.0, eps=clicks.EPSILON**2)
        optimizer = jd.Optimizer(optax.adam(1e-3) if adam else adagrad, [table, dense])

    def replica(ids: Any, targets: Any) -> Any:
        def loss() -> Any:
            rows = table.read_value()[ids] if dense_gradients else jd.nn.embedding_lookup(table, ids)
            scores = rows.reshape(ids.shape[0], -1) @ dense
            losses = optax.sigmoid_binary_cross_entropy(scores, targets)
            return jd.nn.compute_average_loss(losses, global_batch_size=clicks.BATCH)

        value, gradients = jd.value_and_grad(loss, [table, dense])()
        optimizer.apply_gradients(gradients)
        return value

    compiled = jd.function(lambda batch: strategy.reduce("SUM", strategy.run(replica, batch), axis=None))
    distributed = strategy.experimental_distribute_values_from_function
    placed = [
        tuple(distributed(lambda _, one=one: jnp.asarray(one)) for one in batch)
        for batch in clicks.batches(asked.rows, jax.process_index(), jax.process_count())
    ]
    turn = iter(range(1 << 62))
    return timed(lambda: compiled(placed[next(turn) % len(placed)]), float)


def peak(count: int) -> tuple[float, float]:
    """The largest memory of this process so far, in bytes, in the place of seconds."""
    del count
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0, 0.0


def sent(count: int) -> tuple[float, float]:
    """Bytes that this process has written so far, in the place of seconds: Gloo writes to its sockets as to files."""
    del count
    found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return float(found["wchar"]), 0.0


if __name__ == "__main__":
    given = clicks.parse()
    cluster = jd.MultiWorkerMirroredStrategy()
    serve({**{name: step_of(name, given, cluster) for name in given.contenders}, "peak": peak, "sent": sent})
