"""Models with steps and losses of their own, and what each replica makes of them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.keras.steps import Lists, predict_step, rows_of
from jaxtribute.errors import ContextError
from keras_models import X, Y, assert_same, both, classifier, crossentropy, keras, trained


class OwnStep(keras.Sequential):
    """A training step written out, without Keras's losses; one of its logs is no metric."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, layers, optimizer, metrics = state
        x, y = data

        def loss(values: Any) -> Any:
            y_pred, updates = self.stateless_call(values, layers, x, training=True)
            return keras.ops.mean(keras.ops.square(keras.ops.one_hot(y, 3) - y_pred)), updates

        (value, layers), gradients = jax.value_and_grad(loss, has_aux=True)(trainable)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return {"loss": value, "half": value / 2}, (trainable, layers, optimizer, metrics)


class OwnLoss(keras.Model):
    """A loss and a metric of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = keras.layers.Dense(3)
        self.mine = keras.metrics.Mean(name="mine")

    def call(self, x: Any) -> Any:
        return self.head(x)

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        loss = keras.ops.mean(keras.ops.square(keras.ops.one_hot(y, 3) - y_pred))
        self.mine.update_state(loss, sample_weight=keras.ops.shape(y)[0])
        return loss


class NestedLogs(keras.Sequential):
    """A training step that updates each metric by itself and keeps the logs of those of `compile` in one entry."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, layers, optimizer, metrics = state
        x, y = data
        gradient = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (_, aux), gradients = gradient(
            trainable, layers, metrics, x, y, None, training=True, optimizer_variables=optimizer
        )
        loss, y_pred, layers, _ = aux
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        logs: dict[str, Any] = {"more": {"twice": 2 * loss, "pair": (loss, {"half": loss / 2})}}
        updated: list[Any] = []
        for metric in self.metrics:
            values = metrics[len(updated) : len(updated) + len(metric.variables)]
            if metric.name == "loss":
                values = metric.stateless_update_state(values, loss, sample_weight=x.shape[0])
            else:
                values = metric.stateless_update_state(values, y, y_pred)
            logs[metric.name] = metric.stateless_result(values)
            updated += values
        return logs, (trainable, layers, optimizer, updated)


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True])
def test_nested_logs_of_a_step(four: jd.Strategy, eager: bool) -> None:
    class Last(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.logs = logs

    def build() -> Any:
        keras.utils.set_random_seed(0)
        model = NestedLogs([keras.layers.Input((8,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), crossentropy(), metrics=["accuracy"], run_eagerly=eager)
        return model

    def logs(model: Any) -> Any:
        last = Last()
        model.fit(X[:7], Y[:7], batch_size=4, shuffle=False, verbose=0, callbacks=[last])
        return last.logs

    expected, found = both(build, logs, four)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_metric_that_a_layer_updates_is_refused(four: jd.Strategy) -> None:
    class Counting(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.mean = keras.metrics.Mean(name="mine")

        def call(self, x: Any) -> Any:
            self.mean.update_state(x)
            return x

    with four.scope():
        model = keras.Sequential([keras.layers.Input((8,)), Counting(), keras.layers.Dense(3)])
        model.compile("sgd", crossentropy())
    for use in (model.fit, model.evaluate):
        with pytest.raises(Exception, match=r"metric variable mine/.*HINT: update the metric in the model's"):
            use(X, Y, verbose=0)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("eager", [False, True])
def test_random_states_advance_in_predictions(four: jd.Strategy, replicas: int, eager: bool) -> None:
    class MonteCarlo(keras.layers.Dropout):
        def call(self, inputs: Any, training: bool = False) -> Any:
            return super().call(inputs, training=True)

    def predicted(model: Any) -> Any:
        ones = np.ones((8, 64), np.float32)
        return np.stack([*np.split(model.predict(ones, batch_size=4, verbose=0), 2), model.predict_on_batch(ones[:4])])

    def build() -> Any:
        model = keras.Sequential([keras.layers.Input((64,)), MonteCarlo(0.5, seed=3)])
        model.compile(run_eagerly=eager)
        return model

    plain, found = both(build, predicted, four if replicas == 4 else jd.OneDeviceStrategy("CPU:0"))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not np.array_equal(found[one], found[other])
    if replicas == 1:
        np.testing.assert_array_equal(found, plain)
    else:
        assert len({row.tobytes() for row in found.reshape(-1, 64)}) == 12
        np.testing.assert_array_equal(found[:, 0], plain[:, 0])  # the first replica's random numbers are one device's


def build(kind: type[Any]) -> Any:
    keras.utils.set_random_seed(0)
    if kind is OwnStep:
        model = OwnStep([keras.layers.Input((8,)), keras.layers.Dropout(0.0, seed=1), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1))
    else:
        model = OwnLoss()
        model.compile(keras.optimizers.SGD(0.1), metrics=["accuracy"])
    return model


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("kind", [OwnStep, OwnLoss])
def test_models_with_steps_of_their_own(kind: type[Any], four: jd.Strategy) -> None:
    expected, found = both(lambda: build(kind), lambda model: trained(model, X[:7], Y[:7], batch_size=7), four)
    assert {"half"} < found.keys() if kind is OwnStep else {"mine", "accuracy"} < found.keys()
    assert_same(expected, found)


class OwnMetric(keras.metrics.Metric):
    """The largest logit; it does not add up."""

    def __init__(self, aggregation: str = "sum") -> None:
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros", aggregation=aggregation, name="value")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.largest.assign(keras.ops.maximum(self.largest.value, keras.ops.max(y_pred)))

    def result(self) -> Any:
        return self.largest.value


def test_a_metric_that_does_not_add_up_is_refused(four: jd.Strategy) -> None:
    with four.scope():
        model = classifier(metrics=[OwnMetric()])
    for use in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=r"'largest' \(OwnMetric\) does not add what it finds.*HINT: keep sums"):
            use(X, Y, batch_size=4, verbose=0)
    with jd.OneDeviceStrategy("CPU:0").scope():
        model = classifier(metrics=[OwnMetric()])
    largest = model.predict(X, verbose=0).max()
    assert model.evaluate(X, Y, verbose=0, return_dict=True)["largest"] == pytest.approx(largest, rel=1e-5)


def test_outputs_that_do_not_depend_on_the_examples(four: jd.Strategy) -> None:
    class Constant(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return keras.ops.ones((keras.ops.shape(x)[0], 2))

    with four.scope():
        model = keras.Sequential([keras.layers.Input((8,)), Constant()])
    np.testing.assert_array_equal(model.predict(X[:8], verbose=0), np.ones((8, 2)))


def test_steps_run_in_replicas_only() -> None:
    model = classifier()
    with pytest.raises(ContextError, match=r"HINT: call model\.fit"), jd.OneDeviceStrategy("CPU:0").scope():
        predict_step(model, Lists.of(model))(X, 16)


def test_what_a_batch_counts() -> None:
    assert rows_of((X[:5], None)) == 5
    assert rows_of({"a": np.float32(0), "b": X[:3]}) == 3
    assert rows_of(()) == 0
