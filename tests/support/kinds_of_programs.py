"""A small training program of each kind that users write: `python kinds_of_programs.py KIND`."""

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

X = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
BATCH, STEPS = 8, 4


def _batches(strategy: jd.Strategy) -> Any:
    return strategy.experimental_distribute_dataset(strategy.experimental_make_numpy_dataset((X, Y)).batch(BATCH))


def plain() -> None:
    strategy = jd.MirroredStrategy()
    with strategy.scope():
        w = jd.Variable(jnp.zeros((4, 1)))
        optimizer = jd.Optimizer(optax.adam(0.1), [w])

    def replica_step(x: Any, y: Any) -> Any:
        gradients = jd.grad(lambda: jd.nn.compute_average_loss((x @ w - y)[:, 0] ** 2, global_batch_size=BATCH), [w])()
        optimizer.apply_gradients(gradients)

    step = jd.function(lambda batch: strategy.run(replica_step, batch))
    for batch in _batches(strategy):
        step(batch)


def _of_model(model: Any, apply: Callable[[Any], Any], strategy: jd.Strategy) -> None:
    def loss(x: Any, y: Any) -> Any:
        return jd.nn.compute_average_loss((apply(x) - y)[:, 0] ** 2, global_batch_size=BATCH)

    step = jd.function(lambda batch: strategy.run(model.minimize, (loss, *batch)))
    for batch in _batches(strategy):
        step(batch)


def model() -> None:
    strategy = jd.MirroredStrategy()
    with strategy.scope():
        net = jd.Model({"w": jnp.zeros((4, 1))}, optax.sgd(0.1))
    _of_model(net, lambda x: x @ net.value["w"], strategy)


def nnx() -> None:
    from flax import nnx as flax

    strategy = jd.MirroredStrategy()
    with strategy.scope():
        net = jd.Model(flax.Linear(4, 1, rngs=flax.Rngs(0)), optax.adam(0.1))
    _of_model(net, net, strategy)


def equinox() -> None:
    import equinox as eqx

    strategy = jd.MirroredStrategy()
    with strategy.scope():
        net = jd.Model(eqx.nn.Linear(4, 1, key=jax.random.key(0)), optax.adam(0.1))
    _of_model(net, jax.vmap(net), strategy)


def keras() -> None:
    import keras as library

    with jd.MirroredStrategy().scope():
        net = library.Sequential([library.layers.Input((4,)), library.layers.Dense(3, "relu"), library.layers.Dense(1)])
        net.compile("adam", "mse", metrics=["mae"])
    net.fit(X, Y, batch_size=BATCH, verbose=0)  # pyright: ignore[reportArgumentType]


def tf() -> None:
    import jaxtribute.compat.tf as facade

    tensorflow: Any = facade
    strategy = tensorflow.distribute.MirroredStrategy()
    with strategy.scope():
        w = tensorflow.Variable(tensorflow.zeros((4, 1)))
        optimizer = jd.Optimizer(optax.sgd(0.1), [w])

    def replica_step(batch: Any) -> Any:
        x, y = batch

        def loss() -> Any:
            return tensorflow.reduce_sum((tensorflow.matmul(x, w) - y) ** 2) / BATCH

        value, gradients = jd.value_and_grad(loss, [w])()
        optimizer.apply_gradients(gradients)
        return value

    step = tensorflow.function(lambda batch: strategy.run(replica_step, (batch,)))
    for batch in strategy.experimental_distribute_dataset(
        tensorflow.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    ):
        step(batch)


def servers() -> None:
    with jd.ParameterServerStrategy({"ps": 1, "worker": 1}) as strategy:
        with strategy.scope():
            w = jd.Variable(jnp.zeros((4, 1)))
            optimizer = jd.Optimizer(optax.sgd(0.1), [w])
        coordinator = jd.coordinator.ClusterCoordinator(strategy)

        def replica_step(x: Any, y: Any) -> None:
            optimizer.apply_gradients(jd.grad(lambda: jnp.mean((x @ w - y) ** 2), [w])())

        @jd.function
        def step(iterator: Any) -> None:
            strategy.run(replica_step, next(iterator))

        iterator = iter(coordinator.create_per_worker_dataset(lambda: _batches(strategy)))
        for _ in range(STEPS):
            coordinator.schedule(step, (iterator,))
        coordinator.join()


KINDS = {one.__name__: one for one in (plain, model, nnx, equinox, keras, tf, servers)}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
