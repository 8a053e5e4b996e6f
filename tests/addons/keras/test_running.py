"""Variables of users' layers that a step adds something of the rows to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jd
from keras_models import BATCH, X, Y, crossentropy, devices, keras, under

ops: Any = keras.ops
Update = Callable[[Any, Any], Any]


def rows(x: Any, dtype: str = "float32") -> Any:
    return ops.cast(ops.shape(x)[0], dtype)


def layer(update: Update, *, shape: tuple[int, ...] = (), dtype: str = "float32", **kwargs: Any) -> Any:
    """A layer with a variable to which it gives `update(variable, x)` in each call."""

    class Kept(keras.layers.Layer):
        def build(self, _: Any) -> None:
            self.kept = self.add_weight(shape=shape, initializer="zeros", trainable=False, dtype=dtype, **kwargs)

        def call(self, x: Any) -> Any:
            self.kept.assign(ops.cast(update(self.kept.value, x), dtype))
            return x

    return Kept()


def model_of(first: Any, **compiled: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), first, keras.layers.Dense(3)])
    model.compile("sgd", crossentropy(), **compiled)
    return model


def fitted(model: Any) -> Any:
    model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return np.asarray(model.layers[0].non_trainable_variables[0])


KNOWN: dict[str, tuple[Update, dict[str, Any]]] = {
    "rows": (lambda v, x: v + rows(x), {}),
    "rows, the other way": (lambda v, x: ops.add(rows(x), v), {}),
    "integers": (lambda v, x: v + rows(x, "int32"), {"dtype": "int32"}),
    "sums": (lambda v, x: v + ops.sum(x, axis=0), {"shape": (8,)}),
    "sums less": (lambda v, x: v - ops.sum(ops.square(x)), {}),
    "sums at places": (lambda v, x: v + ops.segment_sum(x[:, 0], ops.argmax(x, 1), 8), {"shape": (8,)}),
    "either": (lambda v, x: ops.where(rows(x) > -1, v + rows(x), v), {}),
    "of this batch alone": (lambda _, x: ops.sum(x), {}),
    "rows of this batch": (lambda _, x: rows(x, "int32"), {"dtype": "int32"}),
    "steps": (lambda v, _: v + 1, {}),
    "steps in integers": (lambda v, _: v + 1, {"dtype": "int32"}),
    "twice": (lambda v, _: 2 * v + 1, {}),
    "means": (lambda v, x: v + ops.mean(x), {}),
    "moving average": (lambda v, x: 0.9 * v + 0.1 * ops.mean(x, axis=0), {"shape": (8,)}),
    "moving average, by difference": (lambda v, x: v - 0.1 * (v - ops.mean(x, axis=0)), {"shape": (8,)}),
    "of no row": (lambda v, _: ops.maximum(v, 3.0) / 2, {}),
    "asked for": (lambda v, x: v + rows(x), {"aggregation": "sum"}),
}
CASES = [
    *((name, False) for name in KNOWN),
    *((name, True) for name in ("rows", "integers", "steps", "moving average")),
]


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize(("name", "eager"), CASES)
def test_variables_as_one_device_has_them(four: jd.Strategy, name: str, eager: bool) -> None:
    update, kwargs = KNOWN[name]

    def build() -> Any:
        return model_of(layer(update, **kwargs), run_eagerly=eager)

    expected = fitted(build())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = under(four, build, fitted)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


UNKNOWN: dict[str, tuple[Update, dict[str, Any]]] = {
    "maximum": (lambda v, x: ops.maximum(v, ops.max(x)), {}),
    "any": (lambda v, x: ops.logical_or(v, ops.any(x > 1)), {"dtype": "bool"}),
    "sum of roots": (lambda v, x: v + ops.sqrt(ops.sum(ops.square(x))), {}),
    "average of sums": (lambda v, x: 0.9 * v + 0.1 * ops.sum(x), {}),
    "average of counts": (lambda v, x: 0.9 * v + 0.1 * rows(x), {}),
    "by rows": (lambda v, x: v + 1 / rows(x), {}),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_no_sum_and_no_average_is_told_with_its_line(four: jd.Strategy, name: str) -> None:
    update, kwargs = UNKNOWN[name]
    with pytest.warns(UserWarning, match=r"variable 'sequential.*kept.*test_running\.py:\d+.*HINT: .*all_reduce.'SUM'"):
        under(four, lambda: model_of(layer(update, **kwargs)), fitted)


@pytest.mark.parametrize("number", [1, 2])
def test_each_way_into_a_step_counts_its_rows(number: int) -> None:
    def build() -> Any:
        return model_of(layer(lambda v, x: v + rows(x)))

    def use(model: Any) -> list[float]:
        (variable,) = model.layers[0].non_trainable_variables
        found: list[float] = []
        for call in (
            lambda: model.train_on_batch(X[:5], Y[:5]),
            lambda: model.test_on_batch(X[:3], Y[:3]),
            lambda: model.evaluate(X, Y, batch_size=5, verbose=0),
            lambda: model.predict(X, batch_size=5, verbose=0),
            lambda: model.fit(X, Y, batch_size=8, steps_per_epoch=2, verbose=0),
        ):
            call()
            found.append(float(variable.numpy()))
        return found

    assert under(jd.MirroredStrategy(devices(number)), build, use) == use(build()) == [5, 8, 24, 40, 56]


def test_a_step_of_the_users_own_counts_its_rows(four: jd.Strategy) -> None:
    class Own(keras.Sequential):
        def train_step(self, state: Any, data: Any) -> Any:
            trainable, others, optimizer, metrics = state
            whole = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
            (loss, (_, _, others, metrics)), grads = whole(
                trainable, others, metrics, *data, None, training=True, optimizer_variables=optimizer
            )
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
            return {"loss": loss}, (trainable, others, optimizer, metrics)

    def build() -> Any:
        keras.utils.set_random_seed(0)
        model = Own([keras.Input((8,)), layer(lambda v, x: v + rows(x)), keras.layers.Dense(3)])
        model.compile("sgd", crossentropy())
        return model

    assert under(four, build, fitted) == fitted(build()) == 32


def test_layers_of_keras_beside_those_of_the_user_raise_no_warning(four: jd.Strategy) -> None:
    class Normal(keras.layers.BatchNormalization):
        pass

    class Average(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)
            self.variance = self.add_weight(shape=shape[1:], initializer="ones", trainable=False)

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                mean, variance = ops.moments(x, axes=[0])
                self.mean.assign(self.mean * 0.9 + mean * 0.1)
                self.variance.assign_sub((self.variance - variance) * 0.1)
            return (x - self.mean) / ops.sqrt(self.variance + 1e-3)

    def build() -> Any:
        keras.utils.set_random_seed(0)
        dense = keras.layers.SpectralNormalization(keras.layers.Dense(8))
        layers = [Normal(), Average(), dense, keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1)]
        model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(3)])
        model.compile(keras.optimizers.Adam(use_ema=True), crossentropy(), metrics=["accuracy"])
        return model

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        under(four, build, fitted)
    told = [str(one.message) for one in caught]
    assert not [text for text in told if "gives the variable" in text or "could not be traced" in text]
