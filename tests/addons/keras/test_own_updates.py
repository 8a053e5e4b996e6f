"""Optimizers of Keras update this library's variables as Keras's own, whatever options they have."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "averages": {"use_ema": True, "ema_momentum": 0.5},
    "overwrites": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    "accumulates": {"gradient_accumulation_steps": 2, "clipnorm": 0.5},
    "both": {
        "gradient_accumulation_steps": 2,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 1,
        "weight_decay": 0.1,
    },
    "clipnorm": {"clipnorm": 0.5},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.1},
    "weight_decay": {"weight_decay": 0.1},
    "loss_scale": {"loss_scale_factor": 4.0},
}
OPTIMIZERS = ["SGD", "RMSprop", "Adam", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Nadam", "Ftrl", "Lion", "Lamb"]
VALUES = [np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), np.array([0.5], np.float32)]
GRADIENTS = [
    [np.array([[1.0, -1.0], [0.5, 0.25]], np.float32), np.array([2.0], np.float32)],
    [np.array([[0.5, 1.0], [0.1, 0.2]], np.float32), np.array([-1.0], np.float32)],
    [np.array([[0.0, 3.0], [1.0, 1.0]], np.float32), np.array([0.5], np.float32)],
]


class Pair(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (tf.Variable(value) for value in VALUES)


def trained(optimizer: str, options: dict[str, Any], make: Callable[[], Any], strategy: jd.Strategy) -> list[Any]:
    """What three updates make of variables; the replicas' gradients add up to `GRADIENTS`."""
    with strategy.scope():
        variables = list(make())
        made = getattr(keras.optimizers, optimizer)(0.1, **options)
        made.build(variables)
    share = strategy.num_replicas_in_sync

    def replica_step(*grads: Any) -> None:
        made.apply_gradients(zip([grad / share for grad in grads], variables, strict=True))

    step = jd.function(lambda *grads: strategy.run(replica_step, args=grads))
    for grads in GRADIENTS:
        step(*grads)
    made.finalize_variable_values(variables)
    return [np.asarray(variable) for variable in variables]


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("replicas", [1, 2])
def test_variables_and_modules_are_updated_as_kerass_own(optimizer: str, options: str, replicas: int) -> None:
    how = OPTIONS[options]
    expected = trained(
        optimizer, how, lambda: [keras.Variable(value) for value in VALUES], jd.OneDeviceStrategy("CPU:0")
    )
    strategy = jd.OneDeviceStrategy("CPU:0") if replicas == 1 else jd.MirroredStrategy(replicas)
    makers: list[Callable[[], Any]] = [
        lambda: [tf.Variable(value) for value in VALUES],
        lambda: Pair().trainable_variables,
    ]
    for make in makers:
        for one, other in zip(trained(optimizer, how, make, strategy), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_variables_are_updated_outside_of_compiled_functions() -> None:
    variable = tf.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    for step in range(4):
        optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
        np.testing.assert_allclose(variable.numpy(), np.array([1.0, 2.0]) - 0.1 * ((step + 1) // 2), rtol=1e-6)


@pytest.mark.parametrize(
    ("argument", "clip", "summed", "each"),
    [
        ("clipnorm", tf.clip_by_norm, [0.978, 2.045], [0.955, 2.089]),
        ("clipvalue", lambda gradient, most: tf.clip_by_value(gradient, -most, most), [0.95, 2.05], [0.9, 2.1]),
        ("global_clipnorm", tf.clip_by_norm, [0.978, 2.045], [0.955, 2.089]),
    ],
)
def test_keras_clips_the_sum_and_by_hand_each_replicas(argument: str, clip: Any, summed: Any, each: Any) -> None:
    """`each` is TensorFlow's result in both cases."""

    def trained(by_hand: bool) -> Any:
        options: dict[str, Any] = {} if by_hand else {argument: 0.5}
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            variable = tf.Variable([1.0, 2.0])
            optimizer = keras.optimizers.SGD(0.1, **options)
            optimizer.build([variable])

        def step() -> None:
            context = jd.get_replica_context()
            assert context is not None
            gradient = tf.constant([1.0, -2.0]) * tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            optimizer.apply_gradients([(clip(gradient, 0.5) if by_hand else gradient, variable)])

        strategy.run(step)
        return variable.numpy()

    np.testing.assert_allclose(trained(by_hand=False), summed, atol=6e-4)
    np.testing.assert_allclose(trained(by_hand=True), each, atol=6e-4)
