"""Random programs of lookups in tables, and what plain JAX and Optax make of them on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError

TRANSFORMS = {
    "sgd": lambda: optax.sgd(0.3),
    "adagrad": lambda: optax.adagrad(0.1),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.2), optax.sgd(0.5)),
    "scheduled": lambda: optax.sgd(optax.exponential_decay(0.5, 2, 0.5)),
}
"""Transformations that leave a row as it is where its gradient is zero: by rows they do what they do to all."""
EXACT = {
    "adam": lambda: optax.adam(optax.exponential_decay(0.05, 3, 0.8)),
    "clipped adam": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.03)),
    "warmed adam": lambda: optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.05, 2, 9)),
    "nadam": lambda: optax.nadam(0.02),
    "rmsprop": lambda: optax.rmsprop(0.01, momentum=0.8),
    "momentum": lambda: optax.sgd(optax.linear_schedule(0.1, 0.0, 7), momentum=0.9),
    "nesterov": lambda: optax.sgd(0.05, momentum=0.7, nesterov=True),
    "short momentum": lambda: optax.sgd(0.1, momentum=0.02),
}
"""Transformations that move rows on without a gradient, for tables that are updated exactly. Of the last one's moments
nothing is left after 6 steps, so that rows miss more steps than are done again."""
ALL = TRANSFORMS | EXACT
WEIGHTS = (-1.0, 0.0, 0.5, 1.0, 2.0)


@dataclass
class Feature:
    """One lookup: ids of shape `(steps, batch, hot)`, with weights beside them."""

    table: int
    combiner: Any
    ids: np.ndarray
    weights: np.ndarray | None


@dataclass
class Program:
    """A model of some lookups and a dense layer."""

    tables: list[np.ndarray]
    features: list[Feature]
    dense: np.ndarray
    targets: np.ndarray
    sizes: list[int]
    transform: str
    partition: Any
    updates: list[Any]
    """The way in which each table is updated."""
    together: bool
    """Whether the lookups are one call."""
    strays: bool
    """Whether an id of the last step names no row. No norm over all rows makes all others NaN then, and no step of
    replicas that differ in shape runs as Python, which tells the id."""

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.targets)

    @property
    def batch(self) -> int:
        """Examples of all replicas."""
        return sum(self.sizes)

    @property
    def divisor(self) -> int:
        """The divisor of the loss: the batch's ids, so that steps are not too long for what they are summed up to."""
        return sum(one.ids[0].size for one in self.features)

    def data(self, step: int) -> tuple[list[Any], list[Any], Any]:
        """The ids and weights of the features, and the targets, of a step."""
        ids = [one.ids[step] for one in self.features]
        return ids, [None if one.weights is None else one.weights[step] for one in self.features], self.targets[step]


def random_program(seed: int, replicas: int) -> Program:
    """A program of a seed, for batches over some replicas."""
    rng = np.random.default_rng(seed)
    widths = [int(width) for width in rng.integers(1, 5, 2)]
    tables = [
        rng.normal(size=(int(rng.choice([1, 2, 7, 40, 300])), int(rng.choice(widths)))).astype("float32")
        for _ in range(rng.integers(1, 4))
    ]
    sizes = [int(size) for size in rng.integers(0, 5, replicas)] if rng.random() < 0.4 else [4] * replicas
    sizes[0] = max(sizes[0], 1)
    batch, features = sum(sizes), []
    exact = rng.random() < 0.5
    steps = int(rng.integers(4, 8)) if exact else 2
    for _ in range(int(rng.integers(1, 5))):
        table = int(rng.integers(len(tables)))
        rows, hot = len(tables[table]), int(rng.integers(1, 5))
        combiner = [None, "sum", "mean", "sqrtn"][int(rng.integers(4))]
        # Some ids come often; or all are on one replica, so that an exchange overflows.
        spread = int(rng.choice([rows, max(1, rows // 4)]))
        ids = np.minimum(rng.zipf(1.4, size=(steps, batch, hot)) - 1, spread - 1)
        ids = rng.integers(0, spread, ids.shape) if rng.random() < 0.5 else ids
        if rng.random() < 0.1:
            ids[:] = ids[0, 0, 0]
        weights = None
        if combiner is not None:
            ids = np.where(rng.random(ids.shape) < 0.2, -1, ids)
            if rng.random() < 0.5:
                # Sums of them may be 0, but never nearly 0, where a mean would be all rounding.
                weights = rng.choice(WEIGHTS, ids.shape).astype("float32")
        features.append(Feature(table, combiner, ids.astype("int32"), weights))
    transform = str(rng.choice(list(EXACT if exact else TRANSFORMS)))
    strays = "clipped" not in transform and len(set(sizes)) == 1 and rng.random() < 0.2
    if strays:
        features[0].ids[-1, 0, 0] = len(tables[features[0].table])
    return Program(
        tables,
        features,
        rng.normal(size=(max(widths), 2)).astype("float32"),
        rng.normal(size=(steps, batch, 2)).astype("float32"),
        sizes,
        transform,
        str(rng.choice(["striped", "range"])),
        ["exact" if exact or rng.random() < 0.3 else "lazy" for _ in tables],
        bool(rng.random() < 0.5),
        bool(strays),
    )


def reference(program: Program) -> tuple[list[float], list[np.ndarray]]:
    """Losses and last values by dense gradients, written apart from the library."""

    def combined(rows: Any, combiner: Any, ids: Any, weights: Any) -> Any:
        if combiner is None:
            return rows.sum(1)
        by = jnp.where(ids < 0, 0.0, 1.0) if weights is None else jnp.where(ids < 0, 0.0, weights)
        # What is left out has no gradient: where another id of the example is astray, 0 * NaN would be one.
        total = jnp.where(ids[..., None] < 0, 0.0, rows * by[..., None]).sum(1)
        if combiner == "sum":
            return total
        divisor = (by.sum(1) if combiner == "mean" else jnp.sqrt((by**2).sum(1)))[:, None]
        return jnp.where(divisor == 0, 0.0, total / jnp.where(divisor == 0, 1, divisor))

    def loss(params: Any, all_ids: Any, all_weights: Any, targets: Any) -> Any:
        dense, tables = params
        found = 0
        for one, ids, weights in zip(program.features, all_ids, all_weights, strict=True):
            rows = tables[one.table].at[jnp.maximum(ids, 0)].get(mode="fill", fill_value=jnp.nan)
            found += combined(rows, one.combiner, ids, weights) @ dense[: rows.shape[-1]]
        return ((found - targets) ** 2).sum() / program.divisor

    transform = ALL[program.transform]()

    @jax.jit
    def advanced(params: Any, state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, state = transform.update(grads, state, params)
        return value, optax.apply_updates(params, updates), state

    params: Any = (jnp.asarray(program.dense), list(map(jnp.asarray, program.tables)))
    losses: list[float] = []
    with jax.numpy_dtype_promotion("standard"):
        state = transform.init(params)
        for step in range(program.steps):
            value, params, state = advanced(params, state, program.data(step))
            losses.append(float(value))
    return losses, [np.asarray(params[0]), *map(np.asarray, params[1])]


def trained(program: Program, strategy: Any, *, compiled: bool) -> tuple[list[float], list[np.ndarray]]:
    """The same by tables under a strategy."""
    with strategy.scope():
        dense = jd.Variable(program.dense, name="dense")
        tables = [
            jd.nn.ShardedTable(
                len(first), first.shape[1], first, name=f"table{i}", partition=program.partition, updates=updates
            )
            for i, (first, updates) in enumerate(zip(program.tables, program.updates, strict=True))
        ]
        optimizer = jd.Optimizer(ALL[program.transform](), (dense, tables))

    def replica(ids: Any, weights: Any, targets: Any) -> Any:
        def loss() -> Any:
            total = jnp.zeros(targets.shape, jnp.float32)
            asked = {f"{i}": one for i, one in enumerate(zip(program.features, ids, weights, strict=True))}
            if program.together:
                found = jd.nn.embedding_lookup(
                    {name: tables[one.table] for name, (one, _, _) in asked.items()},
                    {name: own_ids for name, (_, own_ids, _) in asked.items()},
                    {name: own_weights for name, (_, _, own_weights) in asked.items()},
                    {name: one.combiner for name, (one, _, _) in asked.items()},
                )
            else:
                found = {
                    name: jd.nn.embedding_lookup(tables[one.table], own_ids, own_weights, one.combiner)
                    for name, (one, own_ids, own_weights) in asked.items()
                }
            for name, (one, _, _) in asked.items():
                rows = found[name].sum(1) if one.combiner is None else found[name]
                total += rows @ dense.read_value()[: rows.shape[-1]]
            return ((total - targets) ** 2).sum() / jnp.float32(program.divisor)

        value, grads = jd.value_and_grad(loss, (dense, tables))()
        optimizer.apply_gradients(grads)
        return value

    def all_replicas(*batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, batch), axis=None)

    call = jd.function(all_replicas) if compiled else all_replicas
    ends = np.cumsum(program.sizes)

    def split(array: Any) -> Any:
        if array is None or strategy.num_replicas_in_sync == 1:
            return array if array is None else jnp.asarray(array)

        def part(context: Any) -> Any:
            replica = context.replica_id_in_sync_group
            return jnp.asarray(array[ends[replica] - program.sizes[replica] : ends[replica]])

        return strategy.experimental_distribute_values_from_function(part)

    losses: list[float] = []
    for step in range(program.steps):
        ids, weights, targets = program.data(step)
        losses.append(float(call(list(map(split, ids)), list(map(split, weights)), split(targets))))
    return losses, [np.asarray(one.read_value()) for one in (dense, *tables)]


_WILD = 1e3


def check(program: Program, strategy: Any, *, compiled: bool) -> bool:
    """Compares both to 1e-6 of what the numbers come to; returns False if there is nothing to compare."""
    losses, values = reference(program)
    # Large gradients may train away to where all is rounding.
    if not all(np.nan_to_num(np.abs(value)).max() < _WILD for value in [*values, losses]):
        return False
    if program.strays and not compiled:
        with pytest.raises(ArgumentError, match="no row"):
            trained(program, strategy, compiled=False)
        return True
    own_losses, own_values = trained(program, strategy, compiled=compiled)
    np.testing.assert_allclose(own_losses, losses, rtol=5e-6, atol=1e-6)
    for value, own_value in zip(values, own_values, strict=True):
        np.testing.assert_allclose(own_value, value, rtol=5e-6, atol=3e-6)
    return True


def on_worker(seed: int, compiled: bool) -> None:
    """Checks a program on a worker of a cluster."""
    strategy = jd.MultiWorkerMirroredStrategy()
    program = random_program(seed, strategy.num_replicas_in_sync)
    # Of eager steps the worker alone fails whose ids name no row, and the others would wait for it.
    if compiled or not program.strays:
        check(program, strategy, compiled=compiled)


def squares_step(strategy: jd.Strategy, table: Any, optimizer: jd.Optimizer) -> Any:
    """A compiled step on ids, whose loss is the squares of the means of each list's rows."""

    def replica(ids: Any) -> None:
        def loss() -> Any:
            return (jd.nn.embedding_lookup(table, ids, combiner="mean") ** 2).sum()

        optimizer.apply_gradients(jd.grad(loss, [table])())

    return jd.function(lambda ids: strategy.run(replica, (ids,)))
