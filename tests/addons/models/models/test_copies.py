"""What a step changes in `model.value`, a copy, is lost: somebody is told."""

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxtribute as jd

X = np.random.default_rng(0).normal(2, 1, size=(8, 2)).astype(np.float32)


class Net(nnx.Module):
    def __init__(self) -> None:
        self.w, self.mean = nnx.Param(jnp.ones(2)), nnx.BatchStat(jnp.zeros(()))
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        if not self.drop.deterministic:
            self.mean.set_value(x.mean())
        return self.drop(x * self.w.get_value()[None])


def loss(module: Any, x: Any) -> Any:
    return jd.nn.compute_average_loss((module(x) ** 2).sum(1), global_batch_size=len(X))


def of_minimize(model: Any, x: Any) -> None:
    model.minimize(lambda x: loss(model.value, x), x)


def of_flax(model: Any, x: Any) -> None:
    model.apply_gradients(nnx.grad(loss)(model.value, x))


def by_the_model(model: Any, x: Any) -> None:
    model.minimize(lambda x: loss(model, x), x)


def by_a_copy_that_changes_nothing(model: Any, x: Any) -> None:
    def still(x: Any) -> Any:
        copy = model.value
        copy.eval()
        return loss(copy, x)

    model.minimize(still, x)


def said(update: Callable[[Any, Any], None], replicas: int, compiled: bool) -> list[str]:
    """What is said of a step."""
    strategy = jd.MirroredStrategy(replicas)
    with strategy.scope():
        model = jd.Model(Net(), optax.sgd(0.1))

    def step(x: Any) -> None:
        strategy.run(lambda x: update(model, x), (x,))

    (batch,) = strategy.experimental_distribute_dataset([X])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        (jd.function(step) if compiled else step)(batch)
    counts = [int(v) for path, v in model.named_variables() if path[-1] == "count" and "drop" in path]
    assert counts == [int(update is by_the_model)]
    return [str(one.message) for one in found if "copy" in str(one.message)]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("update", [of_minimize, of_flax])
def test_what_is_lost_is_told(update: Callable[[Any, Any], None], replicas: int, compiled: bool) -> None:
    (first, *_) = said(update, replicas, compiled)
    assert "copy of the Net" in first
    assert "HINT: call the jd.Model itself" in first


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("update", [by_the_model, by_a_copy_that_changes_nothing])
def test_where_nothing_is_lost_nothing_is_told(update: Callable[[Any, Any], None], compiled: bool) -> None:
    assert said(update, 2, compiled) == []


def test_gradients_by_a_module_without_anything_that_changes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = jd.Model(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), optax.sgd(0.1))
        model.apply_gradients(nnx.grad(lambda module: jnp.sum(module(X)))(model.value))
