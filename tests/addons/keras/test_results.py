"""Metrics whose `result` returns a variable, as TensorFlow's guides write them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jd
from keras_models import X, Y, crossentropy, devices, keras


class Hits(keras.metrics.Metric):
    """Adds up what is right; its result is the variable."""

    def __init__(self, name: str = "hits", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.hits = self.add_weight(name="hits", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        right = keras.ops.equal(keras.ops.ravel(y_true), keras.ops.cast(keras.ops.argmax(y_pred, axis=1), "int32"))
        self.hits.assign_add(keras.ops.sum(keras.ops.cast(right, "float32")))

    def result(self) -> Any:
        return self.hits


class Several(Hits):
    """Its result is a dictionary with the variable."""

    def result(self) -> Any:
        return {"hits": self.hits, "twice": self.hits * 2}


def build(metric: Any, **compiled: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(1.0), crossentropy(), metrics=[metric], **compiled)
    return model


def hits(model: Any) -> float:
    return float(np.sum(np.argmax(np.asarray(X @ model.get_weights()[0] + model.get_weights()[1]), axis=1) == Y))


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", [Hits, Several])
@pytest.mark.parametrize("eager", [False, True])
def test_a_result_may_be_the_variable(number: int, kind: Any, eager: bool) -> None:
    with jd.MirroredStrategy(devices(number)).scope():
        model = build(kind(), run_eagerly=eager)
    expected: list[float] = []
    history: list[Any] = []
    for _ in range(2):
        expected.append(hits(model))
        history += model.fit(X, Y, batch_size=16, verbose=0, validation_data=(X[:5], Y[:5])).history["hits"]
    assert history == expected  # what an epoch found stays as it was
    assert model.evaluate(X, Y, verbose=0, return_dict=True)["hits"] == hits(model)


def test_a_metric_made_before_the_scope() -> None:
    metric = Hits()
    with jd.MirroredStrategy(devices(2)).scope():
        model = build(metric)
    expected = hits(model)
    assert model.fit(X, Y, batch_size=16, verbose=0).history["hits"] == [expected]


def test_steps_of_the_users_own() -> None:
    class Stateful(keras.Model):
        """In TensorFlow's form, with the variable among its logs."""

        def __init__(self) -> None:
            super().__init__()
            self.dense, self.metric = keras.layers.Dense(3), Hits()

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            self.metric.update_state(y, self(x))
            return {"hits": self.metric.result()}

    class Own(Stateful):
        """In Keras's form for JAX."""

        def train_step(self, state: Any, data: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            trainable, others, optimizer, metrics = state
            x, y = data
            found, others = self.stateless_call(trainable, others, x)
            hits = self.metric.stateless_update_state(metrics[2:], y, found)  # behind those of the loss
            logs = {"loss": jax.numpy.mean(found), "hits": self.metric.stateless_result(hits)}
            return logs, (trainable, others, optimizer, [*metrics[:2], *hits])

    for kind in (Stateful, Own):
        with jd.MirroredStrategy(devices(2)).scope():
            keras.utils.set_random_seed(0)
            model = kind()
            model.compile("sgd", crossentropy())
            model(X[:1])
        assert model.fit(X, Y, batch_size=16, verbose=0).history["hits"] == [hits(model)]
