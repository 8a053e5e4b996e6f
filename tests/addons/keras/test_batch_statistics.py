"""Layers that normalize by statistics over the batch, beside plain Keras on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from keras_models import RNG, WEIGHTS, X, assert_same, both, keras, trained

TOKENS = RNG.integers(0, 5, (16, 3), np.int32)
TOKENS[:, 0] = 1
"""Of each row something is left."""
HALF = np.where(np.arange(16)[:, None] % 4 < 2, 0, TOKENS)
"""Of batches of four, and of their parts on two replicas, the first half is masked as a whole."""
TARGETS = RNG.normal(size=(16, 2)).astype(np.float32)


class Scaled(keras.layers.Layer):
    """A layer with another one in it, which is handed the mask."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.supports_masking = inner, True

    def call(self, x: Any, training: Any = None, mask: Any = None) -> Any:
        return 2 * self.inner(x, training=training, mask=mask)


def batch_norm(**options: Any) -> Any:
    """A layer that knows the whole batch in a scope, as it does on one device."""
    # Plain Keras refuses the flag on JAX.
    whole = {"synchronized": True} if jd.has_strategy() else {}
    return keras.layers.BatchNormalization(momentum=0.5, **whole, **options)


LAYERS: dict[str, Callable[[], Any]] = {
    "whole": batch_norm,
    "renorm": lambda: batch_norm(renorm=True, renorm_momentum=0.5),
    "no scale": lambda: batch_norm(scale=False, center=False),
    "float16": lambda: batch_norm(dtype="mixed_float16"),
    "float64": lambda: batch_norm(dtype="float64"),
    "frozen": lambda: batch_norm(trainable=False),
    "in another layer": lambda: Scaled(batch_norm()),
    "in another model": lambda: keras.Sequential([batch_norm(), keras.layers.Dense(4)]),
    "by rows": lambda: keras.layers.GroupNormalization(2),
    "of weights": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(4)),
}
INPUTS = {"tokens": (TOKENS[:5], 4), "a part without any": (HALF[:4], 3)}
"""Rows, and how many there are in a batch."""


def model_of(make: Callable[[], Any], *, masked: bool, eager: bool) -> Any:
    keras.utils.set_random_seed(0)
    inputs = keras.layers.Input((3,), dtype="int32")
    tokens = keras.layers.Embedding(5, 4, mask_zero=masked)(inputs)
    rows = keras.layers.GlobalAveragePooling1D()(make()(tokens))
    model = keras.Model(inputs, keras.layers.Dense(2)(rows))
    model.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=eager)
    return model


def check(layer: str, *, masked: bool, data: str, eager: bool) -> None:
    """Trains on two replicas: of four rows and of one, which leaves a replica none, or of three and of one."""
    rows, size = INPUTS[data]

    def use(model: Any) -> dict[str, Any]:
        weights = WEIGHTS[: len(rows)] if masked else None
        return trained(model, rows, TARGETS[: len(rows)], batch_size=size, shuffle=False, sample_weight=weights)

    two = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    expected, found = both(lambda: model_of(LAYERS[layer], masked=masked, eager=eager), use, two)
    assert_same(expected, found, 3e-3 if layer == "float16" else 1e-4)


@pytest.mark.filterwarnings("ignore:Layer .* does not support masking", "ignore:Explicitly requested dtype float64")
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("data", INPUTS)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("layer", LAYERS)
def test_statistics_are_those_of_the_whole_batch(layer: str, masked: bool, data: str) -> None:
    check(layer, masked=masked, data=data, eager=False)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["whole", "renorm"])
def test_so_they_are_in_steps_that_run_as_python(layer: str) -> None:
    check(layer, masked=True, data="a part without any", eager=True)


@pytest.mark.quick_cases(5, whole=True)
@pytest.mark.parametrize("rows", [8, 7, 3])
@pytest.mark.parametrize("compiled", [True, False])
def test_statistics_of_what_a_mask_leaves_in_a_loop_of_ones_own(four: jd.Strategy, rows: int, compiled: bool) -> None:
    x = X[:rows, :6].reshape(rows, 3, 2)
    mask = TOKENS[:rows] > 1
    layer: Any = keras.layers.BatchNormalization(momentum=0.5)
    expected = np.asarray(layer(x, training=True, mask=mask))
    with four.scope():
        whole: Any = keras.layers.BatchNormalization(synchronized=True, momentum=0.5)
        whole.build(x.shape)

    def step(batch: Any) -> Any:
        return four.run(lambda x, mask: whole(x, training=True, mask=mask), batch)

    run = jd.function(step) if compiled else step
    (batch,) = four.experimental_distribute_dataset([(x, mask)])
    found = np.concatenate([np.asarray(part) for part in four.experimental_local_results(run(batch))])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for one, other in zip(whole.variables, layer.variables, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-6)


@pytest.mark.parametrize("rows", [8, 7, 3])
def test_adapted_statistics_are_those_of_all_rows(four: jd.Strategy, rows: int) -> None:
    plain: Any = keras.layers.Normalization()
    plain.adapt(X[:rows])
    with four.scope():
        layer: Any = keras.layers.Normalization()
    layer.adapt(X[:rows])
    np.testing.assert_allclose(np.asarray(layer(X)), np.asarray(plain(X)), atol=1e-5)
