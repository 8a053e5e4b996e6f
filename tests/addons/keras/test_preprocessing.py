"""Layers that hold arrays besides variables: `Normalization`, and the images' first layers of `keras.applications`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
import keras_models as models
from keras_models import X, Y, assert_same, both, keras, trained


@pytest.fixture(params=[jd.MirroredStrategy, jd.FullyShardedStrategy])
def strategy(request: pytest.FixtureRequest) -> jd.Strategy:
    return request.param(models.devices())


def normalized() -> Any:
    keras.utils.set_random_seed(0)
    normalization = keras.layers.Normalization()
    normalization.adapt(3 * X + 1)
    model = keras.Sequential([keras.layers.Input((8,)), normalization, keras.layers.Dense(3)])
    model.compile("sgd", models.crossentropy())
    return model


@pytest.mark.quick_cases(1)
def test_normalization_adapts_and_trains_in_a_scope(strategy: jd.Strategy) -> None:
    plain, scoped = both(normalized, trained, strategy)
    assert_same(plain, scoped)


def test_adapted_statistics_are_those_of_plain_keras(strategy: jd.Strategy) -> None:
    plain, scoped = both(normalized, lambda model: model.layers[0], strategy)
    np.testing.assert_allclose(np.asarray(scoped.mean), np.asarray(plain.mean), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(scoped.variance), np.asarray(plain.variance), rtol=1e-6)


def efficient_net() -> Any:
    """Two of the blocks, narrow, without what differs by design: batch statistics of slices, and dropout."""
    module: Any = __import__("keras.src.applications.efficientnet", fromlist=["EfficientNet"])
    keras.utils.set_random_seed(0)
    blocks = module.DEFAULT_BLOCKS_ARGS[:2]
    settings = {
        "weights": None,
        "input_shape": (32, 32, 3),
        "classes": 3,
        "dropout_rate": 0.0,
        "drop_connect_rate": 0.0,
    }
    model = module.EfficientNet(0.25, 0.5, 32, blocks_args=blocks, **settings)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    return model


@pytest.mark.slow
def test_an_application_trains_and_predicts_the_same_in_a_scope() -> None:
    images = np.random.default_rng(0).uniform(0, 255, (4, 32, 32, 3)).astype(np.float32)

    def use(model: Any) -> dict[str, Any]:
        first = model.predict(images, verbose=0)
        found = trained(model, images, Y[:4], batch_size=4, shuffle=False)
        return {"predicted": first, **found, "predicted after": model.predict(images, verbose=0)}

    plain, scoped = both(efficient_net, use, jd.MirroredStrategy(models.devices(2)))
    assert np.isfinite(plain["predicted after"]).all()
    assert_same(plain, scoped, tolerance=1e-4)
