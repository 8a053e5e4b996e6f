"""Optimizers of Keras leave alone what has no gradient, as TensorFlow's do."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxtribute as jd
from replicas import mirrored


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_optimizer_leaves_the_head_alone_that_was_not_trained(replicas: int) -> None:
    """Two heads in turn, by Adam: TensorFlow 2.21 gives these numbers, on one replica and on two."""
    strategy = mirrored(replicas)
    with strategy.scope():
        heads = [jd.Variable(1.0), jd.Variable(1.0)]
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build(heads)

    @jd.function
    def step(x: Any, head: int) -> Any:
        def replica(x: Any) -> Any:
            both = jd.value_and_grad(lambda: (heads[head] * x) ** 2, heads, unconnected_gradients="none")
            loss, grads = both()
            optimizer.apply_gradients(zip(grads, heads, strict=True))
            return loss

        return strategy.run(replica, args=(x,))

    for turn in range(6):
        step(jnp.float32(1), turn % 2)
    np.testing.assert_allclose([float(head) for head in heads], [0.7300, 0.7666], atol=1e-4)
