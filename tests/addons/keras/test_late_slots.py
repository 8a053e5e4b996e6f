"""Slots of Keras's optimizers that a checkpoint is restored into before the first step, as TensorFlow's programs do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from keras_models import keras

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


def scope_of(replicas: int) -> Any:
    if not replicas:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


class Program:
    """One model or several, each with its optimizer, as a tutorial has them."""

    def __init__(self, replicas: int, make: Any, sizes: dict[str, int]) -> None:
        self.strategy = scope_of(replicas)
        with self.strategy.scope():
            self.models: dict[str, Any] = {}
            for name, size in sizes.items():
                layers = [keras.layers.Dense(size, "tanh"), keras.layers.Dense(2)]
                self.models[name] = keras.Sequential([keras.Input((4,)), *layers])
            self.optimizers = {f"{name}_optimizer": make() for name in sizes}
        self.checkpoint = tf.train.Checkpoint(**self.models, **self.optimizers)

    def step(self) -> float:
        def replica(x: Any) -> Any:
            total = 0.0
            for model, optimizer in zip(self.models.values(), self.optimizers.values(), strict=True):

                def loss(model: Any = model) -> Any:
                    return tf.reduce_sum((model(x) - x[:, :2]) ** 2) / 8

                value, gradients = jd.value_and_grad(loss, model.trainable_variables)()
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                total = total + value
            return total

        (batch,) = self.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(X).batch(8))
        return float(self.strategy.reduce("SUM", self.strategy.run(replica, (batch,)), axis=None))


OPTIMIZERS: dict[str, Any] = {
    "Adafactor": lambda: keras.optimizers.Adafactor(0.1),
    "Adam": lambda: keras.optimizers.Adam(0.1),
    "AdamW with averages": lambda: keras.optimizers.AdamW(0.1, use_ema=True),
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "a schedule": lambda: keras.optimizers.RMSprop(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
}
SIZES: dict[str, dict[str, int]] = {
    "one": {"model": 3},
    "twins": {"generator": 3, "discriminator": 3},
    "two": {"generator": 3, "discriminator": 5},
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("saved", "restored"), [(0, 0), (0, 2), (2, 0), (2, 4), (4, 1)])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_goes_on_as_if_nothing_had_been(
    optimizer: str, sizes: str, saved: int, restored: int, tmp_path: Path
) -> None:
    first = Program(saved, OPTIMIZERS[optimizer], SIZES[sizes])
    for _ in range(3):
        first.step()
    with tf.train.CheckpointManager(first.checkpoint, tmp_path, max_to_keep=1) as manager:
        manager.save()
    expected = [first.step() for _ in range(3)]

    second = Program(restored, OPTIMIZERS[optimizer], SIZES[sizes])
    with tf.train.CheckpointManager(second.checkpoint, tmp_path, max_to_keep=1) as manager:
        assert manager.restore_or_initialize()
    np.testing.assert_allclose([second.step() for _ in range(3)], expected, rtol=1e-5)


def test_a_compiled_models_own_optimizer(tmp_path: Path) -> None:
    results: list[float] = []
    for fits in (True, False):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, kernel_initializer="ones")])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        checkpoint = tf.train.Checkpoint(parts=[{"model": model}])
        if fits:
            model.fit(X, X[:, :2], batch_size=8, epochs=2, verbose=0)
            checkpoint.write(tmp_path / "ckpt")
        else:
            checkpoint.read(tmp_path / "ckpt")
        results += model.fit(X, X[:, :2], batch_size=8, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(results[:2], results[2:], rtol=1e-6)


def test_slots_whose_variables_are_not_known_are_told(tmp_path: Path) -> None:
    program = Program(0, OPTIMIZERS["Adam"], SIZES["one"])
    program.step()
    program.checkpoint.write(tmp_path / "ckpt")
    optimizer = keras.optimizers.Adam(0.1)
    with pytest.warns(UserWarning, match="slots of the optimizer 'model_optimizer'.*HINT.*model_optimizer.build"):
        tf.train.Checkpoint(model_optimizer=optimizer).read(tmp_path / "ckpt")
    assert not optimizer.built
