"""Keras models on replicas of several devices: losses of one device, variables and slots in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxtribute as jd
from grouped_programs import devices
from keras_models import keras


def keras_model() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Input((12,)),
            keras.layers.Dense(16, activation="relu", name="up"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(4, name="down"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    return model


def keras_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(44, 12)).astype(np.float32), rng.integers(0, 4, 44).astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [jd.MirroredStrategy, jd.FullyShardedStrategy])
def test_keras(kind: Any, tmp_path: Any) -> None:
    x, y = keras_data()
    with jd.MirroredStrategy(devices(2)).scope():
        model = keras_model()
        expected = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
        predicted = model.predict(x, verbose=0)
    options: dict[str, Any] = {"min_bytes": 0} if kind is jd.FullyShardedStrategy else {}
    layouts = {"up/kernel": (None, "model"), "up/bias": ("model",), "down/kernel": ("model",)}
    strategy = kind(devices(8), devices_per_replica=4, layout=layouts, **options)
    with strategy.scope():
        model = keras_model()
        losses = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(model.predict(x, verbose=0), predicted, rtol=1e-4, atol=1e-5)
    kernel: Any = model.weights[0]
    slots: list[Any] = [v for v in model.optimizer.variables if v.path.endswith(("kernel_momentum", "kernel_velocity"))]
    assert "model" in str(kernel.stored.stored.sharding.spec)
    assert slots[0].stored.stored.sharding == kernel.stored.stored.sharding
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    assert again.weights[0].stored.stored.sharding == kernel.stored.stored.sharding


@pytest.mark.slow
def test_an_automatic_layout_takes_the_optimizers_variables_along() -> None:
    x, y = keras_data()
    with jd.MirroredStrategy(devices(2)).scope():
        model = keras_model()
        expected = model.fit(x, y, batch_size=24, shuffle=False, verbose=0).history["loss"]
    automatic = jd.experimental.AutomaticLayout(tries=1)
    strategy = jd.FullyShardedStrategy(devices(4), devices_per_replica=2, layout=automatic, min_bytes=0)
    with strategy.scope():
        model = keras_model()
        losses = model.fit(x, y, batch_size=24, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    kernel: Any = model.weights[0]
    assert "split by columns" in automatic.notes[f"^{kernel.path}$"].reason
    slots: list[Any] = [v for v in model.optimizer.variables if v.path.endswith(("kernel_momentum", "kernel_velocity"))]
    for variable in (kernel, slots[0], slots[1]):
        assert variable.stored.policy.layout == (None, "model")
        assert variable.stored.stored.addressable_shards[0].data.size == kernel.stored.size // 4


def test_keras_layout_maps_are_taken_as_they_are() -> None:
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), ["cpu:0", "cpu:1", "cpu:2", "cpu:3"])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts["up/kernel"] = (None, "model")
    layouts["down/kernel"] = keras.distribution.TensorLayout(["model", None], mesh)
    strategy = jd.MirroredStrategy(devices(4), devices_per_replica=2, layout=layouts)
    with strategy.scope():
        model = keras_model()
    places = {v.path.partition("/")[2]: v.stored.stored.sharding.spec for v in model.weights}
    assert places["up/kernel"] == PartitionSpec(None, "model")
    assert places["down/kernel"] == PartitionSpec("model")
    assert places["up/bias"] == PartitionSpec()
