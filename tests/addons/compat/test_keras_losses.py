"""Loss objects of Keras in loops of one's own: the mean over the replica's rows, which is not divided further."""

import os
from typing import Any

import numpy as np
import pytest

import jaxtribute.compat.tf as tf

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", None])
def test_a_loss_object_is_the_mean_over_the_replicas_rows(replicas: int, reduction: str | None) -> None:
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    values = np.arange(8, dtype="f").reshape(8, 1)
    objective = keras.losses.MeanSquaredError(reduction=reduction)

    def loss(x: Any) -> Any:
        each = objective(x, np.zeros_like(x))
        return each if reduction else tf.nn.compute_average_loss(each, global_batch_size=len(values))

    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(values).batch(8))
    total = strategy.reduce("SUM", strategy.run(loss, (batch,)), axis=None)
    expected = np.mean(values**2) * (replicas if reduction else 1)
    np.testing.assert_allclose(np.asarray(total), expected, rtol=1e-6)
