"""Steps of one's own that apply gradients several times: each loss sees the weights that the one before has moved."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import ops

import jaxtribute as jd

X = np.random.default_rng(0).normal(size=(11, 3)).astype("f")
Loss = Callable[[Any, Any, Any], Any]
FIRST: dict[str, Loss] = {
    "linear": lambda x, a, b: ops.mean(x * b),
    "of the weights alone": lambda x, a, b: b * b,
    "squared": lambda x, a, b: ops.mean((x * b) ** 2),
    "a sum": lambda x, a, b: ops.sum(x * b),
}
SECOND: dict[str, Loss] = {
    "linear": lambda x, a, b: ops.mean(a * x * b),
    "linear by itself": lambda x, a, b: ops.mean(a * b * (0 * x + 1)),
    "of one column": lambda x, a, b: ops.mean(a * x[:, 0] * b),
    "squared": lambda x, a, b: ops.mean((a * x * b) ** 2),
    "by a number of elements": lambda x, a, b: ops.sum(a * x * b) / (x.shape[0] * x.shape[1]),
    "a sum": lambda x, a, b: ops.sum(a * x * b),
}


class TwoWeights(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.a = self.add_weight(shape=(), initializer="ones")
        self.b = self.add_weight(shape=(), initializer="ones")
        self.built = True

    def call(self, x: Any) -> Any:
        return x * self.a


class Twice(TwoWeights):
    first: Loss
    second: Loss

    def train_step(self, state: Any, data: Any) -> Any:
        (a, b), others, slots, metrics = state
        gradient = jax.grad(lambda b: self.first(data, a, b))(b)
        (a, b), slots = self.optimizer.stateless_apply(slots, [ops.zeros_like(a), gradient], [a, b])
        gradient = jax.grad(lambda a: self.second(data, a, b))(a)
        (a, b), slots = self.optimizer.stateless_apply(slots, [gradient, ops.zeros_like(b)], [a, b])
        return {"gradient": gradient}, ([a, b], others, slots, metrics)


def trained(devices: int, batch: int, first: Loss, second: Loss) -> list[Any]:
    keras.utils.set_random_seed(0)
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(devices)]) if devices else jd.get_strategy()
    with strategy.scope():
        model: Any = Twice()
        model.first, model.second = first, second
        model.compile(keras.optimizers.SGD(0.05))
    history = model.fit(X, batch_size=batch, epochs=2, verbose=0, shuffle=False).history
    return [*map(np.array, model.weights), np.array(history["gradient"])]


@pytest.mark.quick_cases(16)
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("batch", [4, 8])
@pytest.mark.parametrize("devices", [2, 4])
def test_each_update_is_that_of_one_device(devices: int, batch: int, first: str, second: str) -> None:
    given = batch, FIRST[first], SECOND[second]
    for found, expected in zip(trained(devices, *given), trained(0, *given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


class InForm(TwoWeights):
    """The same in TensorFlow's form, whose losses are divided by the rows of all replicas, or the second one is not."""

    local: bool

    def train_step(self, data: Any) -> Any:
        context = jd.get_replica_context()
        assert context is not None
        rows = data.shape[0] if self.local else context.all_reduce("SUM", data.shape[0])
        _, gradient = jd.value_and_grad(lambda: jnp.sum(data * self.b) * 0 + self.b**2 / 2, self.b.stored)()
        self.optimizer.apply_gradients([(gradient, self.b)])
        _, gradient = jd.value_and_grad(lambda: jnp.sum(self.a * data * self.b) / (rows * 3), self.a.stored)()
        self.optimizer.apply_gradients([(gradient, self.a)])
        return {"gradient": gradient}


@pytest.mark.parametrize("local", [True, False])
def test_a_mean_behind_an_update_is_told(local: bool) -> None:
    with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model: Any = InForm()
        model.local = local
        model.compile(keras.optimizers.SGD(0.05))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(X[:8], batch_size=8, verbose=0)
    means = [one for one in told if "gradients of a mean over each replica's rows" in str(one.message)]
    assert len(means) == local, [str(one.message) for one in told]
