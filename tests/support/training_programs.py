"""Random small trainings, as users write them: batches, metrics, loops with collectives, optimizers, checkpoints.

Beside `random_programs`, which wraps reads and writes of variables in JAX's transformations. All numbers are small
whole ones, of which floats are exact, so that NumPy says what every variable holds after every batch.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute.input import AutoShardPolicy

Array = np.ndarray[Any, Any]
SIZE = 4
MODULUS = np.float32(8)
LOOPS = ("scan", "fori", "while", "cond", "nested")
STATEMENTS = ("metric", "reduce", "merge", "gather", "write", "half", "count", "flag", "captured", "train", "rows")
CAPTURED = ("numpy", "loose", "reduced")
"""Where an array from around the replica functions lies: on the host, on no device, on those of all replicas."""


@dataclass(frozen=True)
class Training:
    """Two step functions over the same variables, and how their steps follow each other.

    Attributes:
      rows: how many rows the data have.
      batch: how many a batch has, the last one perhaps fewer.
      nest: what a batch is: `dict`, `tuple` or `dataclass`.
      captured: one of `CAPTURED`.
      functions: the statements of each step function.
      steps: for each batch the function, and whether it is compiled; again from the first for further batches.
      saved: the batch after which a checkpoint is saved; it is restored before the last batch.
      accumulated: the gradients that make up an update.
    """

    rows: int
    batch: int
    nest: str
    captured: str
    functions: tuple[tuple[str, ...], ...]
    steps: tuple[tuple[int, bool], ...]
    saved: int
    accumulated: int

    @property
    def data(self) -> Array:
        return (np.arange(self.rows * SIZE, dtype=np.float32).reshape(-1, SIZE) * 3) % 5

    def step(self, number: int) -> tuple[tuple[str, ...], bool]:
        """The statements of a batch's step, and whether they are compiled: a loop with a collective has to be."""
        function, compiled = self.steps[number % len(self.steps)]
        return self.functions[function], compiled or not set(LOOPS).isdisjoint(self.functions[function])


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    functions = st.lists(st.sampled_from((*STATEMENTS, *LOOPS)), min_size=1, max_size=5).map(tuple)
    return Training(
        rows=draw(st.integers(1, 11)),
        batch=draw(st.integers(1, 5)),
        nest=draw(st.sampled_from(["dict", "tuple", "dataclass"])),
        captured=draw(st.sampled_from(CAPTURED)),
        functions=(draw(functions), draw(functions)),
        steps=tuple(draw(st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=1, max_size=3))),
        saved=draw(st.integers(0, 3)),
        accumulated=draw(st.integers(1, 2)),
    )


@dataclass
class State:
    """What variables hold, by NumPy; `metric` and `seen` have a value for each replica."""

    weights: Array
    half: Array
    count: int
    flag: bool
    metric: Array
    seen: Array
    gradients: list[Array]

    @classmethod
    def first(cls, replicas: int) -> State:
        zeros = np.zeros(SIZE, np.float32)
        return cls(np.arange(SIZE, dtype=np.float32), zeros, 0, False, np.zeros(replicas), np.zeros(replicas), [])

    def totals(self) -> list[Any]:
        return [self.weights, self.half, self.count, self.flag, self.metric.sum(), self.seen.sum()]


def by_numpy(training: Training, replicas: int) -> list[tuple[Array, list[Any]]]:
    """For each batch what its step returns, and what the variables hold then."""
    state, kept, told = State.first(replicas), None, []
    batches = [training.data[i : i + training.batch] for i in range(0, training.rows, training.batch)]
    for number, batch in enumerate(batches):
        if kept is not None and number == len(batches) - 1:
            state = dataclasses.replace(kept)
        each = -(-len(batch) // replicas)
        parts = [batch[r * each : (r + 1) * each] for r in range(replicas)]
        vs = [np.mod(part.sum(0) + np.float32(r), MODULUS) for r, part in enumerate(parts)]
        for one in training.step(number)[0]:
            vs = _stated(one, training, state, parts, vs)
        told.append((np.sum(vs, axis=0), state.totals()))
        if number == training.saved:
            kept = dataclasses.replace(state, metric=state.metric.copy(), seen=state.seen.copy())
            kept.gradients = list(state.gradients)
    return told


def _stated(one: str, training: Training, state: State, parts: list[Array], vs: list[Array]) -> list[Array]:
    total = np.sum(vs, axis=0)
    if one == "metric":
        state.metric = state.metric + [v.sum() for v in vs]
        state.seen = state.seen + [len(part) for part in parts]
    elif one == "write":
        state.weights = np.mod(state.weights, MODULUS) + total
    elif one == "half":
        state.half = total
        vs = [np.mod(v + total, MODULUS) for v in vs]
    elif one == "count":
        state.count += 1
        vs = [np.mod(v + np.float32(state.count), MODULUS) for v in vs]
    elif one == "flag":
        state.flag = not state.flag
        vs = [v if state.flag else np.mod(v + np.float32(2), MODULUS) for v in vs]
    elif one == "train":
        state.gradients = [*state.gradients, np.sum([part.sum(0) for part in parts], axis=0)]
        if len(state.gradients) == training.accumulated:
            state.weights = state.weights - np.sum(state.gradients, axis=0)
            state.gradients = []
    elif one == "rows":
        vs = [np.mod(v + part.max(0, initial=0), MODULUS) for v, part in zip(vs, parts, strict=True)]
    elif one == "captured":
        vs = [np.mod(v + np.full(SIZE, 3, np.float32), MODULUS) for v in vs]
    elif one in ("reduce", "merge", "gather"):
        vs = [np.mod(v + total, MODULUS) for v in vs]
    else:
        times = {"cond": state.count % 2, "nested": 4}.get(one, 2)
        for _ in range(times):
            total = np.sum(vs, axis=0)
            vs = [np.mod(v + total, MODULUS) for v in vs]
    return vs


@jax.tree_util.register_dataclass
@dataclass
class Batch:
    features: Any


_COLLECTIVES: dict[str, Callable[[Any, Any], Any]] = {
    "reduce": lambda context, v: context.all_reduce("SUM", v),
    "merge": lambda context, v: context.merge_call(lambda s, x: s.reduce("SUM", x, axis=None), (v,)),
    "gather": lambda context, v: context.all_gather(v[None], 0).sum(0),
}


class Trained:
    """The same with variables, under a strategy."""

    def __init__(self, training: Training, strategy: jd.Strategy) -> None:
        self.training, self.strategy = training, strategy
        first = State.first(1)
        with strategy.scope():
            self.weights = jd.Variable(first.weights, aggregation="SUM")
            self.half = jd.Variable(jnp.asarray(first.half, jnp.bfloat16), aggregation="SUM", trainable=False)
            self.count = jd.Variable(0, aggregation="ONLY_FIRST_REPLICA", name="scalar")
            self.flag = jd.Variable(np.bool_(False), aggregation="ONLY_FIRST_REPLICA", name="scalar")
            own: dict[str, Any] = {"synchronization": "ON_READ", "aggregation": "SUM", "name": "scalar"}
            self.metric, self.seen = jd.Variable(np.float32(0), **own), jd.Variable(0, **own)
            self.optimizer = jd.Optimizer(
                optax.sgd(1.0), [self.weights], accumulate_steps=training.accumulated, accumulate_op="SUM"
            )
        variables = (self.weights, self.half, self.count, self.flag, self.metric, self.seen)
        self.checkpoint = jd.Checkpoint(variables=list(variables), optimizer=self.optimizer)
        self.steps = [self._step(statements) for statements in training.functions]
        self.compiled = list(map(jd.function, self.steps))
        three = np.full(SIZE, 3, np.float32)
        self.captured: Any = jnp.asarray(three) if training.captured == "loose" else three
        if training.captured == "reduced":
            threes: Any = strategy.run(lambda: jnp.full(SIZE, 3, jnp.float32))
            self.captured = strategy.reduce("MEAN", threes, axis=None)

    def totals(self) -> list[Any]:
        found = (self.weights, self.half, self.count, self.flag, self.metric, self.seen)
        return [np.asarray(variable.read_value()) for variable in found]

    def _step(self, statements: tuple[str, ...]) -> Callable[[Any], Any]:
        def inside(batch: Any, captured: Any) -> Any:
            rows = (
                batch.features if isinstance(batch, Batch) else batch["x"] if isinstance(batch, dict) else batch[1][0]
            )
            context = jd.get_replica_context()
            assert context is not None
            number = jnp.asarray(context.replica_id_in_sync_group, jnp.float32)
            v = jnp.mod(rows.sum(0) + number, MODULUS)
            for one in statements:
                v = self._stated(one, v, rows, context, captured)
            return {"v": v, "n": v.sum()}

        def step(batch: Any) -> Any:
            # Replicas of several devices, and of several workers, cannot meet arrays of all devices from around them.
            mesh = self.strategy.extended.mesh
            given = self.captured if mesh.group or mesh.peers is not None else None
            result = self.strategy.run(inside, (batch, given))
            return self.strategy.reduce("SUM", result["v"], axis=None)

        return step

    def _stated(self, one: str, v: Any, rows: Any, context: Any, captured: Any) -> Any:
        if one in LOOPS:
            return self._looped(one, v, lambda c: jnp.mod(c + context.all_reduce("SUM", c), MODULUS))
        if one in _COLLECTIVES:
            return jnp.mod(v + _COLLECTIVES[one](context, v), MODULUS)
        if one == "rows":
            return jnp.mod(v + rows.max(0, initial=0), MODULUS)
        if one == "captured":
            return jnp.mod(v + (self.captured if captured is None else captured), MODULUS)
        if one == "train":
            _, gradient = jd.value_and_grad(lambda x: jnp.sum(self.weights * x), self.weights)(rows.sum(0))
            self.optimizer.apply_gradients([(gradient, self.weights)])
            return v
        return self._written(one, v, rows, context)

    def _written(self, one: str, v: Any, rows: Any, context: Any) -> Any:
        """What becomes of v by a statement that writes a variable."""
        if one == "metric":
            self.metric.assign_add(v.sum())
            self.seen.assign_add(np.int32(len(rows)))  # of a number the central storage does not know how often
            return v
        if one == "write":
            first = jnp.asarray(context.replica_id_in_sync_group == 0, jnp.float32)
            self.weights.assign(jnp.mod(self.weights.read_value(), MODULUS) * first + v)
            return v
        if one == "half":
            self.half.assign(v.astype(jnp.bfloat16))
            return jnp.mod(v + self.half.read_value().astype(jnp.float32), MODULUS)
        if one == "count":
            self.count.assign_add(1)
            return jnp.mod(v + self.count.read_value().astype(jnp.float32), MODULUS)
        self.flag.assign(jnp.logical_not(self.flag.read_value()))
        return jnp.where(self.flag.read_value(), v, jnp.mod(v + np.float32(2), MODULUS))

    def _looped(self, one: str, v: Any, added: Callable[[Any], Any]) -> Any:
        def twice(c: Any) -> Any:
            return jax.lax.scan(lambda c, _: (added(c), None), c, None, length=2)[0]

        def ahead(c: tuple[Any, Any]) -> tuple[Any, Any]:
            return c[0] + np.int32(1), added(c[1])

        made: dict[str, Callable[[], Any]] = {
            "scan": lambda: twice(v),
            "fori": lambda: jax.lax.fori_loop(0, 2, lambda _, c: added(c), v),
            "while": lambda: jax.lax.while_loop(lambda c: c[0] < 2, ahead, (np.int32(0), v))[1],
            "cond": lambda: jax.lax.cond(self.count.read_value() % 2 == 1, added, lambda c: c, v),
            "nested": lambda: jax.lax.scan(lambda c, _: (twice(c), None), v, None, length=2)[0],
        }
        return made[one]()

    def batches(self) -> Any:
        """The strategy's batches, each a nest."""
        whole = self.training.data
        made: dict[str, Callable[[Array], Any]] = {
            "dict": lambda x: {"x": x},
            "tuple": lambda x: (np.zeros(len(x), np.int32), [x]),
            "dataclass": Batch,
        }
        starts = range(0, len(whole), self.training.batch)
        return self.strategy.experimental_distribute_dataset(
            [made[self.training.nest](whole[i : i + self.training.batch]) for i in starts],
            jd.InputOptions(auto_shard_policy=AutoShardPolicy.DATA),
        )


def check_training(training: Training, strategy: jd.Strategy, folder: Path | None = None) -> None:
    """Trains, and compares with NumPy after each batch.

    Args:
      training: the program.
      strategy: the strategy.
      folder: where the checkpoint is saved, the same for all workers; None for a folder of its own.
    """
    with tempfile.TemporaryDirectory() as own, strategy.scope():
        trained, path = Trained(training, strategy), None
        wanted = by_numpy(training, strategy.num_replicas_in_sync)
        for number, batch in enumerate(trained.batches()):
            if path is not None and number == len(wanted) - 1:
                trained.checkpoint.restore(path)
            function = training.steps[number % len(training.steps)][0]
            step = (trained.compiled if training.step(number)[1] else trained.steps)[function]
            result = np.asarray(step(batch))
            expected, totals = wanted[number]
            np.testing.assert_array_equal(result, expected, err_msg=f"batch {number}")
            for found, total in zip(trained.totals(), totals, strict=True):
                np.testing.assert_array_equal(found.astype(np.float64), total, err_msg=f"batch {number}")
            if number == training.saved:
                path = trained.checkpoint.save(folder or Path(own) / "saved")
        trained.checkpoint.wait()
