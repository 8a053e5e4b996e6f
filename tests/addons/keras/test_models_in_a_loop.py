"""Model after model under one strategy, as in cross-validation: what one leaves behind, and what is compiled again."""

import gc
from collections.abc import Callable, Generator
from typing import Any

import jax
import keras
import numpy as np
import pytest

import jaxtribute as jd

layers = keras.layers
KINDS: dict[str, tuple[Callable[[], list[Any]], tuple[int, ...]]] = {
    "dense": (lambda: [layers.Dense(4), layers.Dropout(0.5), layers.BatchNormalization(), layers.Dense(1)], (6,)),
    "embedding": (lambda: [layers.Embedding(9, 4), layers.Flatten(), layers.Dense(1)], (6,)),
    "recurrent": (lambda: [layers.GRU(4), layers.Dense(1)], (6, 3)),
}


@pytest.fixture
def compiled() -> Generator[list[int]]:
    """Counts what is compiled, in a list of one number."""
    count = [0]

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        count[0] += "backend_compile" in event

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield count
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]])
def test_no_model_leaves_anything_behind(devices: list[str], kind: str, compiled: list[int]) -> None:
    make, shape = KINDS[kind]
    x = np.random.default_rng(0).integers(0, 9, (20, *shape)).astype("f")
    y = x.reshape(20, -1)[:, :1]
    strategy = jd.MirroredStrategy(devices)
    found: list[tuple[int, int]] = []
    for _ in range(3):
        before = compiled[0]
        with strategy.scope():
            model: Any = keras.Sequential([keras.Input(shape), *make()])
            model.compile("adam", "mse")
        model.fit(x, y, batch_size=8, verbose=0)
        del model
        keras.backend.clear_session()
        gc.collect()
        found.append((compiled[0] - before, len(jax.live_arrays())))
    assert found[1] == found[2], found
    # The step, on whole batches and on the last one; all else is compiled already.
    assert found[2][0] <= 2, found
    assert found[0][1] == found[2][1], found


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]])
def test_a_function_that_a_layer_keeps_sees_values_of_later(devices: list[str]) -> None:
    class Kept(keras.layers.Layer):
        def build(self, input_shape: Any) -> None:
            self.factor = self.add_weight(shape=(), initializer="ones")
            self.times = jax.jit(lambda x: x * self.factor.value)

        def call(self, x: Any) -> Any:
            return self.times(x)

    with jd.MirroredStrategy(devices).scope():
        inputs = keras.Input(batch_shape=(4, 3))
        layer = Kept()
        model = keras.Model(inputs, layer(inputs))
        ones = np.ones((4, 3), "f")
        for value in (1.0, 3.0, 5.0):
            layer.factor.assign(value)
            np.testing.assert_allclose(layer(ones), value * ones)
            np.testing.assert_allclose(model(ones), value * ones)
