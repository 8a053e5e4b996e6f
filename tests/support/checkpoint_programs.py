"""A training program with everything that a checkpoint can hold, and what there is to see of its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

import jaxtribute as jd

AGGREGATIONS = ("SUM", "MEAN", "ONLY_FIRST_REPLICA", "NONE")


@dataclass
class Program:
    """The parts of a program; `state` is what it has of them in NumPy."""

    strategy: Any
    model: dict[str, Any]
    optimizer: jd.Optimizer
    metrics: dict[str, jd.Variable]
    iterator: Any
    checkpoint: jd.Checkpoint

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for group, variables in (("model", self.model), ("metric", self.metrics)):
            for name, variable in variables.items():
                if name != "NONE":
                    found[f"{group} {name}"] = np.asarray(variable.read_value())
        for slot in self.optimizer.variables:
            found[f"slot {slot.name}"] = np.asarray(slot.read_value())
        found["step"] = self.checkpoint.step
        found["key"] = np.asarray(jax.random.key_data(self.checkpoint.key))
        found["nest"] = [np.asarray(leaf) for leaf in jax.tree.leaves(self.checkpoint.nest)]
        return found

    def rest(self) -> list[float]:
        """The rows that the iterator still gives, in order."""
        rows: list[float] = []
        for batch in self.iterator:
            rows += [float(row) for part in self.strategy.experimental_local_results(batch) for row in part]
        return rows


def build(strategy: Any, *, width: int = 3) -> Program:
    """Makes the program, with zeros everywhere."""
    with strategy.scope():
        model = {
            "kernel": jd.Variable(np.zeros((5, width), np.float32), name="dense/kernel"),
            "bias": jd.Variable(np.zeros(7, np.float16), name="dense/bias"),
            "count": jd.Variable(0, name="count"),
            "empty": jd.Variable(np.zeros((0, 4), np.float32), name="empty"),
        }
        metrics = {
            how: jd.Variable(
                np.zeros(2, np.float32),
                name=how,
                synchronization=jd.VariableSynchronization.ON_READ,
                aggregation=jd.VariableAggregation[how],
            )
            for how in AGGREGATIONS
        }
    trained = [model["kernel"], model["bias"]]
    with jax.numpy_dtype_promotion("standard"):
        optimizer = jd.Optimizer(optax.adam(0.1), trained, shard_update=strategy.num_replicas_in_sync > 1)
    rows = strategy.experimental_make_numpy_dataset(np.arange(20, dtype=np.float32)).shuffle(seed=3).batch(4)
    iterator = iter(strategy.experimental_distribute_dataset(rows))
    checkpoint = jd.Checkpoint(
        model=model,
        optimizer=optimizer,
        metrics=metrics,
        data=iterator,
        step=0,
        key=jax.random.key(0),
        nest={"rate": 0.0, "mean": np.zeros(2), "table": jax.numpy.zeros((2, 2), "bfloat16")},
    )
    return Program(strategy, model, optimizer, metrics, iterator, checkpoint)


def advance(program: Program) -> None:
    """Gives every value something that is its own, and takes two batches."""
    rng = np.random.default_rng(7)
    for variable in (program.model["kernel"], program.model["bias"], *program.optimizer.variables):
        value = rng.normal(size=variable.shape)
        variable.assign(value.astype(variable.dtype) if variable.shape else 3)
    program.model["count"].assign(11)
    for name, variable in program.metrics.items():
        if name != "NONE":
            variable.assign(rng.normal(size=2).astype(np.float32))
    for _ in range(2):
        next(program.iterator)
    program.checkpoint.step = 5
    program.checkpoint.key = jax.random.split(program.checkpoint.key)[1]
    program.checkpoint.nest = {
        "rate": 0.25,
        "mean": np.array([1.0, 2.0]),
        "table": jax.numpy.full((2, 2), 3, "bfloat16"),
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Checks that two states are equal to the bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        for mine, theirs in zip(jax.tree.leaves(value), jax.tree.leaves(other[name]), strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=name, strict=isinstance(mine, np.ndarray))
