"""Loss objects of Keras in replica functions of one's own: in programs of TensorFlow's divided as TensorFlow divides.

Each case is compared with what NumPy makes of the replicas' own rows: their means, divided by the number of replicas.
"""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")

VALUES = np.arange(1, 17, dtype="f").reshape(8, 2)
WEIGHTS = np.array([1, 0.5, 2, 0, 1, 3, 1, 0.25], dtype="f")


class Squares(keras.losses.Loss):
    """A loss of the user's own, with a value for each example."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return (y_pred - y_true)[:, 0] ** 2


class OneNumber(keras.losses.Loss):
    """A loss of the user's own that takes the mean itself, which nobody divides further."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean((y_pred - y_true) ** 2)


def mean(x: Any, w: Any) -> Any:
    return np.mean(x**2)


LOSSES: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], bool]] = {
    "a mean": (keras.losses.MeanSquaredError, mean, True),
    "its other name": (lambda: keras.losses.MeanSquaredError(reduction="mean"), mean, True),
    "of a string": (lambda: keras.losses.get("MeanSquaredError"), mean, True),
    "weighted": (
        lambda: Weighted(keras.losses.MeanSquaredError()),
        lambda x, w: np.mean(np.mean(x**2, -1) * w),
        True,
    ),
    "by its weights": (
        lambda: Weighted(keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")),
        lambda x, w: np.sum(np.mean(x**2, -1) * w) / np.sum(w),
        True,
    ),
    "of the user's": (Squares, lambda x, w: np.mean(x[:, 0] ** 2), True),
    "one number": (OneNumber, mean, False),
    "a sum": (lambda: keras.losses.MeanSquaredError(reduction="sum"), lambda x, w: np.sum(np.mean(x**2, -1)), False),
    "divided by the whole": (
        lambda: Divided(keras.losses.MeanSquaredError(reduction=None)),
        lambda x, w: np.sum(np.mean(x**2, -1)) / len(VALUES),
        False,
    ),
}
"""A loss, its value for a replica's rows, and whether this is divided by the number of replicas."""


class Weighted:
    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __call__(self, y: Any, x: Any, weight: Any) -> Any:
        return self.loss(y, x, sample_weight=weight)


class Divided:
    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __call__(self, y: Any, x: Any) -> Any:
        return tf.nn.compute_average_loss(self.loss(y, x), global_batch_size=len(VALUES))


def strategy_of(replicas: int) -> Any:
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def total(replicas: int, rows: int, loss: Any, *, compiled: bool = True) -> tuple[Any, Any]:
    """The sum over the replicas of a loss, and of its gradient by a factor of the values."""
    strategy = strategy_of(replicas)
    with strategy.scope():
        factor = tf.Variable(1.0)

    def replica(x: Any, w: Any) -> Any:
        def value() -> Any:
            given = (w,) if isinstance(loss, Weighted) else ()
            return loss(0 * x, x * factor, *given)

        return jd.value_and_grad(value, [factor])()

    def step(batch: Any) -> Any:
        one, (gradient,) = strategy.run(replica, batch)
        return strategy.reduce("SUM", one, axis=None), strategy.reduce("SUM", gradient, axis=None)

    data = tf.data.Dataset.from_tensor_slices((VALUES[:rows], WEIGHTS[:rows])).batch(8)
    (batch,) = strategy.experimental_distribute_dataset(data)
    one, gradient = (tf.function(step) if compiled else step)(batch)
    return np.asarray(one), np.asarray(gradient)


@pytest.mark.quick_cases(9)
@pytest.mark.filterwarnings("ignore:.*a loss object of Keras, which divides:RuntimeWarning")
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rows", [8, 6])
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_object_is_divided_as_on_tensorflow(name: str, replicas: int, rows: int, compiled: bool) -> None:
    make, of_rows, divided = LOSSES[name]
    share = -(-rows // replicas)
    parts = [slice(i, min(i + share, rows)) for i in range(0, rows, share)]
    expected = sum(of_rows(VALUES[part], WEIGHTS[part]) for part in parts) / (replicas if divided else 1)
    one, gradient = total(replicas, rows, make(), compiled=compiled)
    np.testing.assert_allclose(one, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, 2 * expected, rtol=1e-5)


def test_uneven_batches_are_told() -> None:
    told = r"test_keras_losses.py:\d+ takes the mean of a loss object of Keras, which divides.*have 4, 3 rows.*=None"
    with pytest.warns(RuntimeWarning, match=told):
        total(2, 7, keras.losses.MeanSquaredError())
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        total(2, 8, keras.losses.MeanSquaredError())
        total(2, 7, Divided(keras.losses.MeanSquaredError(reduction=None)))


def test_other_programs_have_the_mean_over_the_replicas_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jaxtribute.compat.tf")
    assert total(2, 8, keras.losses.MeanSquaredError())[0] == pytest.approx(2 * np.mean(VALUES**2))


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_loss_of_compile_in_a_loop_of_ones_own(replicas: int) -> None:
    """With the losses of its layers: the sum over the replicas is what one device has."""
    strategy = strategy_of(replicas)
    with strategy.scope():
        regularizer = keras.regularizers.L2(0.5)
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", kernel_regularizer=regularizer)
        model = keras.Sequential([keras.Input((2,)), layer])
        model.compile(keras.optimizers.SGD(0.1), "mse")

    @tf.function
    def step(batch: Any) -> Any:
        def replica(x: Any) -> Any:
            return model.compute_loss(x, np.zeros((x.shape[0], 1), "f"), model(x))

        return strategy.reduce("SUM", strategy.run(replica, (batch,)), axis=None)

    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(VALUES).batch(8))
    np.testing.assert_allclose(step(batch), np.mean(VALUES.sum(1) ** 2) + 1, rtol=1e-6)


def test_metrics_of_several_losses_show_them_whole() -> None:
    strategy = strategy_of(2)
    with strategy.scope():
        x = keras.Input((2,))
        model = keras.Model(x, {name: keras.layers.Rescaling(by, name=name)(x) for name, by in (("a", 1), ("b", 2))})
        model.compile(loss={"a": "mse", "b": "mae"})

    @tf.function
    def step(batch: Any) -> None:
        def replica(x: Any) -> None:
            model.compute_loss(x, {"a": 0 * x, "b": 0 * x}, model(x))

        strategy.run(replica, (batch,))

    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(VALUES).batch(8))
    step(batch)
    shown = {metric.name: metric.result() for metric in model.metrics}
    assert (shown["a_loss"], shown["b_loss"]) == pytest.approx((np.mean(VALUES**2), 2 * np.mean(VALUES)))
