"""The callback that verifies the steps of `fit`."""

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute import testing
from jaxtribute.integrations.keras import Verify


@pytest.mark.slow
def test_keras_fit_is_verified_by_a_callback() -> None:
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(40, size)).astype(np.float32) for size in (4, 1))
    with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model: Any = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(6, "relu"),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse", metrics=["mae"])
    verify = Verify()
    model.fit(x, y, batch_size=20, epochs=2, validation_split=0.5, verbose=0, callbacks=[verify])
    assert len(verify.verdicts) == 2, verify.verdicts
    assert all(one.right and len(one.tried) >= 5 and not one.unverified for one in verify.verdicts), verify.verdicts

    def hardest(y: Any, out: Any) -> Any:
        return keras.ops.max((y - out) ** 2)

    model.compile("adam", hardest)
    before = model.get_weights()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's steps warn of it, too
        with pytest.raises(testing.NotOneDeviceError, match=rf"{Path(__file__).name}:\d+.*\n(.*\n)*.*INSTEAD"):
            model.fit(x, y, batch_size=20, verbose=0, callbacks=[Verify()])
    assert all(np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))
