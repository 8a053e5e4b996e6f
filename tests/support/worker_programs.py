"""What the workers of a cluster run in the tests beside this file. Each returns what its test looks at."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd
from jaxtribute._src.core.cluster import runtime
from jaxtribute._src.core.strategies import multi_worker


@cache
def strategy() -> jd.MultiWorkerMirroredStrategy:
    """One for all calls in a process, as there is one cluster."""
    return jd.MultiWorkerMirroredStrategy()


def rank() -> int:
    cluster = runtime.Cluster.current()
    assert cluster is not None
    return cluster.rank


def replica_context() -> jd.ReplicaContext:
    context = jd.get_replica_context()
    assert context is not None
    return context


def facts() -> dict[str, Any]:
    s = strategy()
    context = s.extended.input_context()
    return {
        "replicas": s.num_replicas_in_sync,
        "local": len(s.extended.mesh.local_ids),
        "task": (s.cluster_resolver.task_type, s.cluster_resolver.task_id),
        "devices": s.extended.worker_devices,
        "pipelines": (context.num_input_pipelines, context.input_pipeline_id),
        "main": jd.is_main(),
    }


def first_values() -> dict[str, Any]:
    """Every worker computes values of its own; the first worker's count."""
    with strategy().scope():
        mine = np.random.default_rng(rank()).normal(size=(3, 2)).astype(np.float32)
        variables = {
            "scalar": jd.Variable(float(rank() + 5)),
            "matrix": jd.Variable(mine),
            "integers": jd.Variable(np.arange(4) + rank()),
            "flags": jd.Variable(np.array([True, rank() == 1])),
            "on_read": jd.Variable(
                float(rank()),
                synchronization=jd.VariableSynchronization.ON_READ,
                aggregation=jd.VariableAggregation.SUM,
            ),
        }

    def step(name: str) -> None:
        if name not in variables:
            variables[name] = jd.Variable(lambda: jnp.float32(rank() + 7))

    strategy().run(step, ("eager",))
    jd.function(lambda: strategy().run(step, ("compiled",)))()
    return {name: np.asarray(variable.read_value()) for name, variable in variables.items()}


def different_shapes() -> str:
    with strategy().scope():
        try:
            jd.Variable(np.zeros(2 + rank(), np.float32), name="odd")
        except jd.errors.ShapeError as error:
            return str(error)
    return "no error"


def wide_layers(alike: bool) -> dict[str, Any]:
    """Trains large layers on few examples, on processors that are alike, or are said to differ."""
    told = "alike" if alike else os.environ["TF_CONFIG"]
    with mock.patch.object(multi_worker, "arithmetic", return_value=told):
        s = jd.MultiWorkerMirroredStrategy()
    rng = np.random.default_rng(0)
    with s.scope():
        layers = [jd.Variable(rng.normal(size=shape).astype(np.float32) / 32) for shape in ((512, 1024), (1024, 512))]
    optimizer = jd.Optimizer(optax.adam(1e-3), layers)

    def replica(x: Any) -> Any:
        def loss() -> Any:
            return jnp.mean((jnp.tanh(x @ layers[0]) @ layers[1] - x) ** 2) / s.num_replicas_in_sync

        value, grads = jd.value_and_grad(loss, layers)()
        optimizer.apply_gradients(grads)
        return value

    @jd.function
    def step(x: Any) -> Any:
        return s.reduce("SUM", s.run(replica, (x,)), axis=None)

    rows = rng.normal(size=(s.num_replicas_in_sync, 4, 512)).astype(np.float32)
    batch: Any = s.experimental_distribute_values_from_function(lambda context: rows[context.replica_id_in_sync_group])
    losses = [float(step(batch)) for _ in range(10)]
    (program,) = step._signatures.programs.values()  # pyright: ignore[reportPrivateUsage]
    text = program.lower([batch.data]).as_text()  # pyright: ignore[reportFunctionMemberAccess]
    # A few rows, for the messages between processes, and the bits of all.
    bits = [hashlib.sha256(layer.numpy().tobytes()).hexdigest() for layer in layers]
    some = [layer.numpy()[:4] for layer in layers]
    return {"losses": losses, "gathers": text.count("stablehlo.all_gather"), "bits": bits, "rows": some}


def collectives(compiled: bool) -> dict[str, Any]:
    """All collectives, once by every replica."""
    s = strategy()

    def step(x: Any) -> Any:
        context = replica_context()
        me = context.replica_id_in_sync_group
        return {
            "sum": context.all_reduce("sum", x),
            "mean": context.all_reduce("mean", {"a": x, "b": x + jnp.float32(1)}),
            "gather": context.all_gather(x, axis=0),
            "merged": context.merge_call(lambda s, v: s.reduce("SUM", v, axis=None), (x,)),
            "id": jnp.asarray(me, jnp.int32),
        }

    run = jd.function(lambda v: s.run(step, (v,))) if compiled else lambda v: s.run(step, (v,))
    value = s.experimental_distribute_values_from_function(
        lambda ctx: np.full((2,), ctx.replica_id_in_sync_group, np.float32)
    )
    result = run(value)
    return {
        **{name: np.asarray(result[name]) for name in ("sum", "gather", "merged")},
        "mean": {name: np.asarray(mean) for name, mean in result["mean"].items()},
        "ids": [int(x) for x in s.experimental_local_results(result["id"])],
        "reduced": np.asarray(s.reduce("SUM", value, axis=None)),
        "along": float(s.reduce("MEAN", value, axis=0)),
        "gathered": np.asarray(s.gather(value, axis=0)),
    }


def ragged(compiled: bool) -> dict[str, Any]:
    """Rows that differ between replicas and between workers."""
    s = strategy()
    value = s.experimental_distribute_values_from_function(
        lambda ctx: np.full((ctx.replica_id_in_sync_group, 2), ctx.replica_id_in_sync_group, np.float32)
    )

    def step(x: Any) -> Any:
        return jnp.sum(x), x * jnp.float32(2)

    run = jd.function(lambda v: s.run(step, (v,))) if compiled else lambda v: s.run(step, (v,))
    total, doubled = run(value)
    return {
        "gathered": np.asarray(s.gather(doubled, axis=0)),
        "sum": float(s.reduce("SUM", total, axis=None)),
        "mean": float(s.reduce("MEAN", value, axis=(0, 1))),
        "local": [np.asarray(x).shape for x in s.experimental_local_results(doubled)],
    }


def sliced_slots(shard_update: Any) -> bool:
    """Whether the slots of a large variable are in slices."""
    with strategy().scope():
        large = jd.Variable(np.zeros((512, 512), np.float32))
    optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [large], shard_update=shard_update)
    return any(slot.policy.split for slot in optimizer.variables)


def writes() -> dict[str, Any]:
    """Variables written in each context, eagerly and compiled."""
    s = strategy()
    with s.scope():
        total = jd.Variable(jnp.zeros(2), aggregation=jd.VariableAggregation.SUM)
        first = jd.Variable(jnp.zeros(()), aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA)
        local = jd.Variable(
            0.0, synchronization=jd.VariableSynchronization.ON_READ, aggregation=jd.VariableAggregation.SUM
        )

    def step() -> None:
        me = jnp.asarray(replica_context().replica_id_in_sync_group, jnp.float32)
        total.assign_add(jnp.stack([me, jnp.float32(1)]))
        first.assign(me + jnp.float32(7))
        local.assign_add(me + jnp.float32(1))

    s.run(step)
    eager = [np.asarray(total), float(first), float(local)]
    jd.function(lambda: s.run(step))()
    total.assign_add(jnp.ones(2))
    created: list[Any] = []

    def create() -> Any:
        if not created:
            created.append(jd.Variable(float(rank() + 3)))
        return created[0].read_value()

    inside = s.run(create)
    return {
        "eager": eager,
        "compiled": [np.asarray(total), float(first), float(local)],
        "created": [float(x) for x in s.experimental_local_results(inside)],
    }


def train(rows: int, batch: int, epochs: int, policy: str) -> dict[str, Any]:
    """A small model over a dataset with a partial last batch; exact losses, and how many rows were seen."""
    s = strategy()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, 3)).astype(np.float32), rng.normal(size=(rows,)).astype(np.float32)
    with s.scope():
        w = jd.Variable(jnp.ones(3) * jnp.float32(0.5))
        seen = jd.Variable(
            0, synchronization=jd.VariableSynchronization.ON_READ, aggregation=jd.VariableAggregation.SUM
        )
        optimizer = jd.Optimizer(optax.adam(0.1), [w])

    def replica(batch_x: Any, batch_y: Any) -> Any:
        def loss() -> Any:
            return jnp.sum((batch_x @ w.read_value() - batch_y) ** 2) / jnp.float32(batch)

        value, gradients = jd.value_and_grad(loss, [w])()
        optimizer.apply_gradients(zip(gradients, [w], strict=True))
        seen.assign_add(jnp.int32(batch_x.shape[0]))
        return value

    @jd.function
    def step(batch: Any) -> Any:
        return s.reduce("SUM", s.run(replica, batch), axis=None)

    options = jd.InputOptions(auto_shard_policy=jd.AutoShardPolicy[policy])
    data = s.experimental_distribute_dataset(s.experimental_make_numpy_dataset((x, y)).batch(batch), options)
    losses = [float(step(element)) for _ in range(epochs) for element in data]
    return {"losses": losses, "w": np.asarray(w), "seen": int(seen)}


def own_data() -> list[Any]:
    """Each worker has rows of its own, and the first has more; also if all batches have one shape."""
    s = strategy()

    def sums(drop: bool, others: int = 2) -> list[float]:
        def make(context: Any) -> Any:
            count = 5 if context.input_pipeline_id == 0 else others
            return s.experimental_make_numpy_dataset(np.arange(count, dtype=np.float32)).batch(2, drop_remainder=drop)

        step = jd.function(lambda element: s.reduce("SUM", element, axis=0))
        return [float(step(element)) for element in s.distribute_datasets_from_function(make)]

    return [*sums(False), *sums(True), *sums(False, 0)]


def off_course() -> str:
    """One worker goes another way."""
    s = strategy()
    try:
        if rank() == 0:
            s.run(lambda: replica_context().replica_id_in_sync_group)
        else:
            with s.scope():
                jd.Variable(1.0, name="extra")
    except jd.errors.ClusterError as error:
        return str(error)
    return "no error"


def steps_until(folder: str) -> int:
    """Steps over all workers, one after the other, until there is a file `end`; the number of steps."""
    s = strategy()
    place, done = Path(folder), 0
    step = jd.function(lambda x: s.reduce("SUM", x, axis=None))
    while True:
        done += 1
        ends = np.float32((place / "end").exists())
        last = float(step(s.experimental_distribute_values_from_function(lambda _, ends=ends: ends)))
        (place / f"going-{rank()}").touch()
        if last == s.num_replicas_in_sync:
            return done
