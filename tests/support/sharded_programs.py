"""What the workers run in `tests/multiprocess/test_fully_sharded.py`, and what one process must get too."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

import jaxtribute as jd
from jaxtribute._src.core.jaxprs.kinds import list_collectives
from jaxtribute._src.core.values.mesh import AXIS
from jaxtribute._src.core.values.slices import Cut


def on_this_worker() -> dict[str, Any]:
    """`program` under a strategy over all workers, and where its variable lies."""
    strategy = jd.FullyShardedStrategy(cluster_resolver=jd.cluster_resolver.TFConfigClusterResolver(), min_bytes=64)
    found = program(strategy)
    with strategy.scope():
        v = jd.Variable(np.zeros((6, 8), np.float32))
    return {
        **found,
        "replicas": strategy.num_replicas_in_sync,
        "pieces": [s.data.size for s in v.stored.addressable_shards],
    }


def scattered_sums(arrays: dict[str, Any]) -> dict[str, Any]:
    """This worker's replicas' slices of the sums of what all hold, times their number; and the collectives for it."""
    strategy = jd.FullyShardedStrategy(cluster_resolver=jd.cluster_resolver.TFConfigClusterResolver())
    mesh = strategy.extended.mesh

    def replica(*values: Any) -> list[Any]:
        factor = jax.lax.axis_index(AXIS) + 1
        return [Cut(value.shape, mesh.size).scattered(value * factor.astype(value.dtype)) for value in values]

    sums = jax.jit(
        jax.shard_map(replica, mesh=mesh.mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(AXIS), check_vma=False)
    )
    values = [mesh.replicate(value) for value in arrays.values()]
    found = [np.concatenate(mesh.local_parts(total)) for total in sums(*values)]
    kinds = {line.split()[0] for line in list_collectives(jax.make_jaxpr(sums)(*values).jaxpr, AXIS)}
    return {"sums": dict(zip(arrays, found, strict=True)), "kinds": sorted(kinds)}


def with_a_late_worker(late_s: float) -> list[float]:
    """Losses of steps before each of which worker 1 sleeps; the first step meets in the first collective of all."""
    strategy = jd.FullyShardedStrategy(cluster_resolver=jd.cluster_resolver.TFConfigClusterResolver(), min_bytes=0)
    with strategy.scope():
        w = jd.Variable(np.arange(8, dtype=np.float32))
        optimizer = jd.Optimizer(optax.sgd(0.25), [w])

    def replica_step(x: Any) -> Any:
        value, gradients = jd.value_and_grad(lambda: jnp.sum((w.read_value() - x) ** 2) / 2, [w])()
        optimizer.apply_gradients(gradients)
        return value

    @jd.function
    def step(x: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica_step, (x,)), axis=None)

    losses: list[float] = []
    for _ in range(2):
        if strategy.extended.mesh.local_ids[0]:
            time.sleep(late_s)
        losses.append(float(step(np.float32(1))))
    return losses


def program(strategy: jd.Strategy) -> dict[str, Any]:
    """Losses and variables of a training with a partial last batch, an eager step and writes."""
    rng = np.random.default_rng(0)
    with strategy.scope():
        w = jd.Variable(rng.normal(size=(6, 9)).astype(np.float32), aggregation=jd.VariableAggregation.MEAN)
        b = jd.Variable(np.zeros(9, np.float32))
        optimizer = jd.Optimizer(optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)), [w, b])

    def replica_step(x: Any) -> Any:
        def loss() -> Any:
            hidden = jnp.tanh(x @ w + b.read_value()[None])
            return jd.nn.compute_average_loss((hidden**2).sum(-1), global_batch_size=8)

        value, gradients = jd.value_and_grad(loss, [w, b])()
        optimizer.apply_gradients(gradients)
        return value

    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, (x,)), axis=None)

    compiled = jd.function(step)
    x = rng.normal(size=(21, 6)).astype(np.float32)
    data = strategy.experimental_distribute_dataset(strategy.experimental_make_numpy_dataset(x).batch(8))
    losses = [float(compiled(batch)) for batch in data]
    losses.append(float(step(next(iter(data)))))
    w.assign_add(np.ones((6, 9), np.float32))
    strategy.run(lambda: w.assign(w * 2))
    return {"losses": losses, "w": w.numpy(), "b": b.numpy(), "slot": optimizer.variables[1].numpy()}
