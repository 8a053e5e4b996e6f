"""Sums in a small type: by NumPy, and what the workers of a cluster run of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from sklearn.datasets import load_digits

import jaxtribute as jd

WIRES = ("bfloat16", "float16", "int8", "int4")
BLOCKS = {"int8": (256, 127), "int4": (64, 7)}
"""Elements that share a scale, and the largest integer, by type."""
LAYERS = (64, 128, 10)


def rounded(values: Any, wire: str) -> Any:
    """Float32 values as they come out of the wire; the number of elements is a multiple of a block's."""
    if wire not in BLOCKS:
        with np.errstate(over="ignore"):
            return values.astype(ml_dtypes.bfloat16 if wire == "bfloat16" else np.float16).astype(np.float32)
    block, largest = BLOCKS[wire]
    blocks = values.reshape(-1, block)
    peak = np.abs(blocks).max(1, keepdims=True)
    scale = peak * np.float32(1 / largest)
    scale = np.where(np.isfinite(peak), np.where(scale < np.finfo(np.float32).tiny, 0, scale), np.nan)
    scale = scale.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        steps = np.round(blocks * (1 / np.where(scale > 0, scale, np.float32(1))))
        return (np.clip(steps, -largest, largest) * scale).reshape(values.shape)


def summed(parts: Sequence[Any], wire: str | None) -> Any:
    """The sum of float32 arrays of one shape, one a replica, that travel in a type."""
    if wire is None or len(parts) == 1 or parts[0].size < 4096:
        return np.sum(np.stack(parts), 0, dtype=np.float32)
    block = len(parts) * 256
    flat = [np.pad(part.reshape(-1), (0, -part.size % block)) for part in parts]
    arrived = [rounded(part, wire) for part in flat]
    total = arrived[0]
    for part in arrived[1:]:
        total = total + part
    # Two replicas send each other all, and nothing is sent that was added up.
    total = total if len(parts) == 2 else rounded(total, wire)
    return total[: parts[0].size].reshape(parts[0].shape)


def hints(wire: str | None, **options: Any) -> jd.experimental.CommunicationOptions:
    """Options of which only these are set."""
    return jd.experimental.CommunicationOptions(wire=wire, **options)


def train(strategy: jd.Strategy, steps: int = 40, **options: Any) -> tuple[list[float], list[Any]]:
    """Losses of a perceptron on digits, in batches of 240, and its variables at the end."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images[:1680] / 16).astype(np.float32), labels[:1680].astype(np.int32)
    rng = np.random.default_rng(0)
    with strategy.scope():
        weights = [
            jd.Variable((rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)) for shape in pairwise(LAYERS)
        ]
        optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), weights, **options)

    def replica_step(x: Any, y: Any) -> Any:
        def loss() -> Any:
            logits = jnp.tanh(x @ weights[0].read_value()) @ weights[1].read_value()
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).sum() / 240

        value, grads = jd.value_and_grad(loss, weights)()
        optimizer.apply_gradients(grads)
        return value

    step = jd.function(lambda x, y: strategy.reduce("SUM", strategy.run(replica_step, (x, y)), axis=None))
    batches = [(images[i : i + 240], labels[i : i + 240]) for i in range(0, 1680, 240)]
    with warnings.catch_warnings():  # of batches that every worker reads, as all of these are in memory
        warnings.simplefilter("ignore")
        data = [batch for _ in range(-(-steps // 7)) for batch in strategy.experimental_distribute_dataset(batches)]
    losses = [float(step(x, y)) for x, y in data[:steps]]
    return losses, [weight.numpy() for weight in weights]


def on_this_worker() -> dict[str, Any]:
    """Sums and training of a worker in a cluster, in each type."""
    found: dict[str, Any] = {}
    for wire in (None, *WIRES):
        strategy = jd.MultiWorkerMirroredStrategy(communication_options=hints(wire))
        rows = parts(strategy.num_replicas_in_sync)

        def total(strategy: jd.Strategy = strategy, rows: Any = rows) -> Any:
            context = jd.get_replica_context()
            assert context is not None
            return context.all_reduce("SUM", jnp.asarray(rows)[context.replica_id_in_sync_group])

        eager = strategy.experimental_local_results(strategy.run(total))
        compiled = strategy.experimental_local_results(jd.function(lambda s=strategy, t=total: s.run(t))())
        found[str(wire)] = [np.asarray(value) for value in (*eager, *compiled)], train(strategy)
    return found


def parts(replicas: int) -> Any:
    """A large array a replica."""
    return np.random.default_rng(7).normal(size=(replicas, 70, 100)).astype(np.float32)
