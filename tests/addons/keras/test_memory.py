"""Keras's `fit` within a budget of memory: the same losses, weights, statistics and metrics."""

from typing import Any

import numpy as np

import jaxtribute as jd
from jaxtribute.experimental import Event, Observer, observe
from keras_models import keras


class Choices(Observer):
    """Keeps what was chosen."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def on_end(self, event: Event) -> None:
        """Keeps it."""
        self.made.append(event.result)


def test_fit_is_the_same_within_a_budget() -> None:
    x = np.random.default_rng(0).normal(size=(150, 16)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int32)

    def fitted(memory: Any) -> tuple[Any, Any, list[Any]]:
        keras.utils.set_random_seed(0)
        choices = Choices()
        jd.config.set_memory_budget(memory)
        try:
            with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
                layers = [keras.Input((16,))]
                for _ in range(2):
                    layers += [keras.layers.Dense(64, "gelu"), keras.layers.BatchNormalization()]
                model = keras.Sequential([*layers, keras.layers.Dropout(0.2), keras.layers.Dense(2)])
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                model.compile("adam", loss, metrics=["accuracy"])
            with observe(choices, "budget"):
                logs = model.fit(x, y, batch_size=64, epochs=1, shuffle=False, verbose=0).history
        finally:
            jd.config.set_memory_budget(None)
        return logs, model.get_weights(), choices.made

    logs, weights, _ = fitted(None)
    choice = fitted("1GiB")[2][0]
    less, values, made = fitted(choice.everything * 6 // 10)
    assert all(one.recomputed for one in made[:1])
    for key, numbers in logs.items():
        np.testing.assert_allclose(less[key], numbers, rtol=1e-5)
    for one, other in zip(values, weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
