"""Checkpoints of models that keep optimizers of their own as attributes, as GANs do."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf

X = np.random.default_rng(0).normal(size=(10, 3)).astype("f")


class TwoOptimizers(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        glorot: Any = keras.initializers.GlorotUniform
        self.first = keras.layers.Dense(2, kernel_initializer=glorot(1))
        self.second = keras.layers.Dense(1, kernel_initializer=glorot(2))
        self.first.build((None, 3))
        self.second.build((None, 2))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))

    def compile_with(self, first: Any, second: Any) -> None:
        self.compile(first)  # which has one place in the checkpoint
        self.of_first, self.of_second = first, second
        first.build(self.first.trainable_variables)
        second.build(self.second.trainable_variables)

    def train_step(self, data: Any) -> Any:
        context = jd.get_replica_context()
        assert context is not None
        rows = context.all_reduce("SUM", len(data))
        for layer, optimizer in ((self.first, self.of_first), (self.second, self.of_second)):
            loss, grads = jd.value_and_grad(lambda: (self(data) ** 2).sum() / rows, layer.trainable_variables)()
            optimizer.apply_gradients(zip(grads, layer.trainable_variables, strict=True))
        return {"loss": loss}


class WithInner(TwoOptimizers):
    """The second optimizer is that of a model inside."""

    def compile_with(self, first: Any, second: Any) -> None:
        super().compile_with(first, second)
        self.inner = keras.Sequential([keras.Input((2,)), self.second])
        self.inner.compile(second)
        del self.of_second

    def __getattr__(self, name: str) -> Any:
        if name == "of_second":
            return self.inner.optimizer
        raise AttributeError(name)


def made(devices: int, kind: type[TwoOptimizers]) -> Any:
    with jd.MirroredStrategy([f"CPU:{i}" for i in range(devices)]).scope():
        model = kind()
        model.compile_with(keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1, momentum=0.9))
    return model


def fit(model: Any, epochs: int) -> list[Any]:
    model.fit(X, batch_size=4, epochs=epochs, shuffle=False, verbose=0)
    variables = [*model.weights, *model.of_first.variables, *model.of_second.variables]
    return [np.array(one) for one in variables]


@pytest.mark.parametrize("kind", [TwoOptimizers, WithInner])
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_training_goes_on_with_all_optimizers(devices: int, kind: type[TwoOptimizers], tmp_path: Path) -> None:
    expected = fit(made(1, kind), 3)
    before = made(2, kind)
    fit(before, 1)
    path = jd.Checkpoint(model=before).save(tmp_path / "ckpt", block=True)
    after = made(devices, kind)
    jd.Checkpoint(model=after).restore(path)
    for found, wanted in zip(fit(after, 2), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


def test_one_that_is_not_built_is_told_where_tensorflow_would_wait_for_it(tmp_path: Path) -> None:
    before = made(1, TwoOptimizers)
    fit(before, 1)
    path = tf.train.Checkpoint(model=before).save(tmp_path / "ckpt")
    after = made(1, TwoOptimizers)
    after.of_second = keras.optimizers.SGD(0.1, momentum=0.9)
    with pytest.warns(UserWarning, match=r"slots of the optimizer 'model.of_second'.*HINT: before the restore call"):
        tf.train.Checkpoint(model=after).restore(path)
