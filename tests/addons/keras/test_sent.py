"""Keras's objects in functions that a coordinator sends to workers."""

from typing import Any

import keras
import numpy as np
import pytest

from jaxtribute._src.addons.parameter_servers.scheduling import pickling
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.integrations.keras import StringLookup


def model() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (model, "Sequential"),
        (lambda: model().weights[0], "Variable"),
        (keras.metrics.Mean, "Mean"),
    ],
)
def test_what_keras_trains_with_would_be_a_copy(make: Any, name: str) -> None:
    found = make()
    with pytest.raises(
        ArgumentTypeError, match=rf"{name} '.*' of Keras in a function for workers was not made in.*HINT"
    ):
        pickling.dumps(lambda: found)


@pytest.mark.slow
def test_what_prepares_data_travels() -> None:
    words = keras.Input((2,), dtype="string")
    stage = keras.Model(words, StringLookup(vocabulary=["a", "b"])(words))
    scaled = keras.layers.Normalization(mean=1.0, variance=4.0)
    scaled(np.ones((1, 2)))
    sent = pickling.loads(pickling.dumps(lambda x, y: (stage(x), scaled(y))))
    numbers, values = sent(np.array([["b", "c"]]), np.array([[3.0, 5.0]]))
    assert numbers.tolist() == [[2, 0]]
    np.testing.assert_allclose(values, [[1.0, 2.0]], rtol=1e-6)
