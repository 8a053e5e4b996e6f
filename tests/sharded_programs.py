"""What the workers run in `tests/multiprocess/test_fully_sharded.py`, and what one process must get too."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd


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
