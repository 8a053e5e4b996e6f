"""An MLP's training step as a script, for `jaxtribute plan --calibrate` to predict and to measure.

jaxtribute plan --calibrate --local 1,2,4,8 --workers 2 benchmarks/planned.py 64-256-256-10 256
jaxtribute plan --calibrate --local 1,2,4,8 --workers 2 benchmarks/planned.py 784-2048-2048-10 128

On an idle machine the errors of its table are to be within 25 %.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

layers, batch = [int(units) for units in sys.argv[1].split("-")], int(sys.argv[2])
random = np.random.default_rng(0)
strategy = jd.MultiWorkerMirroredStrategy()  # a MirroredStrategy where there is no cluster

with strategy.scope():
    variables: list[jd.Variable] = []
    for inputs, units in pairwise(layers):
        variables.append(jd.Variable((random.normal(size=(inputs, units)) / inputs**0.5).astype(np.float32)))
        variables.append(jd.Variable(np.zeros(units, np.float32)))
    optimizer = jd.Optimizer(optax.sgd(0.01, momentum=0.9), variables)


def update(images: jax.Array, labels: jax.Array) -> jax.Array:
    """One replica's part of a step."""

    def loss() -> jax.Array:
        hidden = images
        for weight, bias in zip(variables[:-2:2], variables[1:-2:2], strict=True):
            hidden = jax.nn.relu(hidden @ weight + bias)
        logits = jax.nn.log_softmax(hidden @ variables[-2] + variables[-1])
        return -jnp.take_along_axis(logits, labels[:, None], 1).sum() / batch

    value, gradients = jd.value_and_grad(loss, variables)()
    optimizer.apply_gradients(gradients)
    return value


@jd.function
def step(examples: Any) -> jax.Array:
    """A step of all replicas."""
    return strategy.reduce("SUM", strategy.run(update, examples), axis=None)


images = random.normal(size=(batch, layers[0])).astype(np.float32)
labels = random.integers(0, layers[-1], batch).astype(np.int32)
examples = strategy.experimental_make_numpy_dataset((images, labels)).batch(batch)
while True:
    for one in strategy.experimental_distribute_dataset(examples):
        step(one)
