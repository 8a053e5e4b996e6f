"""Modules of Flax NNX that write a parameter while they are called, as `nnx.SpectralNorm` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute.errors import VariableError
from replicas import each_executor, execute, ident, mirrored

DEVICES = [f"CPU:{i}" for i in range(4)]
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "one": lambda: mirrored(1),
    "two": lambda: mirrored(2),
    "four": lambda: mirrored(4),
    "sharded": lambda: jd.FullyShardedStrategy(DEVICES, min_bytes=0),
}
X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
BATCHES = [X, X[:5], X[:2]]
"""Of rows that four replicas share evenly, unevenly, and too few for all."""


class Twice(nnx.Module):
    """Two layers that are normalised."""

    def __init__(self, layer: Any) -> None:
        self.a = layer(nnx.Linear(6, 7, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(1))
        self.b = layer(nnx.Linear(7, 1, rngs=nnx.Rngs(2)), rngs=nnx.Rngs(3))

    def __call__(self, x: Any) -> Any:
        return self.b(jnp.tanh(self.a(x)))


class Decaying(nnx.Module):
    """A parameter that decays in each call, in a transformation of Flax, and one that is not trained."""

    def __init__(self) -> None:
        self.w, self.frozen = nnx.LoRAParam(jnp.ones(6)), nnx.Param(jnp.ones(()))

    def __call__(self, x: Any) -> Any:
        def call(module: Decaying, x: Any) -> Any:
            module.w.set_value(module.w.get_value() * jnp.float32(0.9))
            module.frozen.set_value(module.frozen.get_value() + module.w.get_value().sum() / 7)
            return module.frozen.get_value() * (x @ module.w.get_value())[:, None]

        return nnx.remat(call)(self, x)


MODULES: dict[str, tuple[Callable[[], Any], Any]] = {
    "spectral": (lambda: Twice(nnx.SpectralNorm), nnx.Param),
    "weight": (lambda: Twice(nnx.WeightNorm), nnx.Param),
    "decaying": (Decaying, nnx.LoRAParam),
}


def plain(make: Callable[[], Any], wrt: Any) -> tuple[list[float], Any]:
    """The losses, and the module at the end, of Flax alone."""
    module, losses = make(), []
    optimizer = nnx.Optimizer(module, optax.adam(0.1), wrt=wrt)

    def loss(module: Any, x: Any) -> Any:
        return (module(x) ** 2).mean()

    for x in BATCHES:
        value, gradients = nnx.value_and_grad(loss, argnums=nnx.DiffState(0, wrt))(module, x)
        with jax.numpy_dtype_promotion("standard"):
            optimizer.update(module, gradients)
        losses.append(float(value))
    return losses, module


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("kind", STRATEGIES)
@each_executor
def test_a_parameter_made_of_the_modules_own_arrays_is_kept_and_updated(name: str, kind: str, executor: str) -> None:
    make, wrt = MODULES[name]
    strategy = STRATEGIES[kind]()
    expected, module = plain(make, wrt)
    with strategy.scope():
        model = jd.Model(make(), optax.adam(0.1), wrt=wrt)

    losses: list[float] = []
    for batch, x in zip(strategy.experimental_distribute_dataset(BATCHES), BATCHES, strict=True):

        def loss(rows: Any, size: int = len(x)) -> Any:
            return jd.nn.compute_average_loss(model(rows)[:, 0] ** 2, global_batch_size=size)

        value = execute(executor, strategy, model.minimize, loss, batch)
        losses.append(float(strategy.reduce("SUM", value, axis=None)))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for ours, theirs in zip(jax.tree.leaves(nnx.state(model.value)), jax.tree.leaves(nnx.state(module)), strict=True):
        if not jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-5)


OWN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a mean of rows": lambda w, x, drop: w + x.mean(),
    "in jit": lambda w, x, drop: jax.jit(lambda w: w * x.sum())(w),
    "a choice": lambda w, x, drop: jax.lax.cond(x.sum() > 0, lambda: w, lambda: w * 2),
    "where": lambda w, x, drop: jnp.where(x.sum() > 0, w, w + 1),
    "a number of turns": lambda w, x, drop: jax.lax.fori_loop(0, (x.sum() > 0).astype(int), lambda _, w: w * 2, w),
    "random numbers": lambda w, x, drop: drop(w),
    "the replica": lambda w, x, drop: w + ident().astype(w.dtype),
}


class Own(nnx.Module):
    """Writes a parameter with what the replica alone has."""

    def __init__(self, change: Any) -> None:
        self.w, self.drop, self._change = nnx.Param(jnp.ones(6)), nnx.Dropout(0.5, rngs=nnx.Rngs(0)), change

    def __call__(self, x: Any) -> Any:
        self.w[...] = self._change(self.w[...], x, self.drop)
        return x @ self.w[...]


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("kind", ["two", "sharded"])
@each_executor
def test_a_parameter_made_of_what_a_replica_has_is_refused(name: str, kind: str, executor: str) -> None:
    strategy = STRATEGIES[kind]()
    with strategy.scope():
        model = jd.Model(Own(OWN[name]), optax.sgd(0.1))
    (batch,) = strategy.experimental_distribute_dataset([X])
    with pytest.raises(VariableError, match=r"w.* is a parameter, which only the optimizer changes.*HINT"):
        execute(executor, strategy, lambda x: model.minimize(lambda x: (model(x) ** 2).sum(), x), batch)


@each_executor
def test_a_parameter_made_of_the_number_of_rows_is_refused(executor: str) -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model = jd.Model(Own(lambda w, x, drop: w + 0.5 * x.shape[0]), optax.sgd(0.1))
    (batch,) = strategy.experimental_distribute_dataset([X[:5]])
    with pytest.raises(VariableError, match="each of 2 replicas"):
        execute(executor, strategy, lambda x: model.minimize(lambda x: (model(x) ** 2).sum(), x), batch)
