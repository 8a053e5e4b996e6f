"""Layers that change after a `jd.function` was traced with them: the function is traced anew."""

from typing import Any

import keras
import numpy as np
import pytest

import jaxtribute as jd

pytestmark = pytest.mark.slow
X = np.ones((2, 3), np.float32)


def traced(plain: bool) -> tuple[Any, Any, Any]:
    """A model, its first layer, and a compiled function that calls it."""
    strategy = jd.get_strategy() if plain else jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    forward = jd.function(model)
    np.testing.assert_allclose(forward(X), model(X), rtol=1e-6)
    forward(X)
    return model, model.layers[0], forward


@pytest.mark.parametrize("plain", [True, False])
def test_lora(plain: bool) -> None:
    model, layer, forward = traced(plain)
    before = np.asarray(forward(X))
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.ones((2, 4)))
    after = np.asarray(forward(X))
    assert not np.allclose(after, before)
    np.testing.assert_allclose(after, model(X), rtol=1e-5)
    layer.lora_kernel_b.assign(np.zeros((2, 4)))
    np.testing.assert_allclose(forward(X), before, rtol=1e-5)
    assert forward.experimental_get_tracing_count() == 2


def test_lora_of_a_frozen_layer() -> None:
    model, layer, forward = traced(plain=False)
    layer.trainable = False
    forward(X)
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.ones((2, 4)))
    np.testing.assert_allclose(forward(X), model(X), rtol=1e-5)


def test_a_frozen_layer_is_trained_no_more_and_thawed_without_a_trace() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1), keras.layers.Dense(1)])
    first = model.layers[0]

    @jd.function
    def gradients(x: Any) -> Any:
        return jd.value_and_grad(lambda: keras.ops.sum(model(x) ** 2), model.trainable_variables)()[1]

    assert len(gradients(X)) == 4
    first.trainable = False
    assert len(gradients(X)) == 2
    first.trainable = True
    assert len(gradients(X)) == 4
    first.trainable = False
    assert len(gradients(X)) == 2
    assert gradients.experimental_get_tracing_count() == 2


def test_what_belongs_to_no_program_causes_no_trace() -> None:
    model, _, forward = traced(plain=False)
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    other.layers[0].enable_lora(2)
    model.compile("sgd", "mse")
    model.fit(X, np.ones((2, 1)), verbose=0)
    forward(X)
    assert forward.experimental_get_tracing_count() == 1
