"""A small network under strategies whose replicas have several devices, and by hand on one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

LAYOUTS = {"w1": (None, "model"), "b1": ("model",), "w2": ("model",)}
ROWS = (8, 8, 6)


def devices(count: int) -> list[str]:
    return [f"CPU:{i}" for i in range(count)]


def grouped(replicas: int, each: int, kind: Any = jd.MirroredStrategy, **options: Any) -> jd.Strategy:
    return kind(devices(replicas * each), devices_per_replica=each, layout=LAYOUTS, **options)


def values() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"w1": (12, 16), "b1": (16,), "w2": (16, 4), "b2": (4,)}
    return {name: rng.normal(size=shape).astype(np.float32) / 3 for name, shape in shapes.items()}


def batches() -> list[Any]:
    rng = np.random.default_rng(1)
    return [(rng.normal(size=(rows, 12)).astype(np.float32), rng.integers(0, 4, rows)) for rows in ROWS]


def network(p: dict[str, Any], x: Any) -> Any:
    hidden = jax.nn.relu(x @ p["w1"] + jnp.asarray(p["b1"])[None])
    return hidden @ p["w2"] + jnp.asarray(p["b2"])[None]


def by_hand(epochs: int = 3) -> list[float]:
    """Losses of plain JAX on one device."""
    with jax.numpy_dtype_promotion("standard"):
        return _by_hand(epochs)


def _by_hand(epochs: int) -> list[float]:
    params, transform = {k: jnp.asarray(v) for k, v in values().items()}, optax.adam(0.05)
    state, losses = transform.init(params), []
    for _ in range(epochs):
        for x, y in batches():
            value, grads = jax.value_and_grad(
                lambda p, x=x, y=y: optax.softmax_cross_entropy_with_integer_labels(network(p, x), y).sum() / 8
            )(params)
            updates, state = transform.update(grads, state, params)
            params = optax.apply_updates(params, updates)
            losses.append(float(value))
    return losses


def build(strategy: jd.Strategy, executor: str = "compiled", **options: Any) -> tuple[Any, list[Any], Any]:
    with strategy.scope():
        variables = {name: jd.Variable(value, name=name) for name, value in values().items()}
        optimizer = jd.Optimizer(optax.adam(0.05), list(variables.values()), **options)

    def replica_step(x: Any, y: Any) -> Any:
        def loss() -> Any:
            each = optax.softmax_cross_entropy_with_integer_labels(network(variables, x), y)
            return jd.nn.compute_average_loss(each, global_batch_size=8)

        value, grads = jd.value_and_grad(loss, list(variables.values()))()
        optimizer.apply_gradients(grads)
        return value

    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, (x, y)), axis=None)

    return (jd.function(step) if executor == "compiled" else step), list(variables.values()), optimizer


def train(strategy: jd.Strategy, executor: str = "compiled", epochs: int = 3) -> tuple[list[float], Any, Any]:
    step, variables, optimizer = build(strategy, executor)
    options = jd.InputOptions(auto_shard_policy=jd.AutoShardPolicy.DATA)
    dataset = strategy.experimental_distribute_dataset(batches(), options)
    losses = [float(step(x, y)) for _ in range(epochs) for x, y in dataset]
    return losses, variables, optimizer


def on_this_worker(kind: str, each: int, executor: str) -> dict[str, Any]:
    """Losses of a training over all workers, with `each` devices a replica, and where its variables lie."""
    resolver = jd.cluster_resolver.TFConfigClusterResolver()
    layout = jd.experimental.AutomaticLayout(tries=2) if executor == "automatic" else LAYOUTS
    options: dict[str, Any] = {"devices_per_replica": each, "layout": layout}
    strategy: jd.Strategy
    if kind == "mirrored":
        strategy = jd.MultiWorkerMirroredStrategy(resolver, **options)
    else:
        strategy = jd.FullyShardedStrategy(cluster_resolver=resolver, min_bytes=0, **options)
    losses, variables, _ = train(strategy, "compiled" if executor == "automatic" else executor, epochs=2)
    context = strategy.extended.input_context()
    return {
        "replicas": strategy.num_replicas_in_sync,
        "pipelines": context.num_input_pipelines,
        "losses": losses,
        "parts": [variable.stored.addressable_shards[0].data.size for variable in variables],
        "layouts": [variable.policy.layout for variable in variables],
        "values": [variable.numpy() for variable in variables],
    }
