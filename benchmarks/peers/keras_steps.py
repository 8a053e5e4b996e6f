"""The same MLP step by Keras on JAX with `keras.distribution.DataParallel`: `train_on_batch`."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

import itertools
from typing import Any

import jax
import numpy as np

from benchmarks.harness import serve
from benchmarks.peers.arguments import Asked, Step, parse
from benchmarks.problems import LEARNING_RATE, MOMENTUM, Problem


def step_of(problem: Problem) -> Step:
    """Dense layers with the problem's weights."""
    import time

    import keras

    sizes = [p.shape for p in problem.params[::2]]
    layers = [keras.layers.Dense(size[1], activation="relu") for size in sizes[:-1]]
    model = keras.Sequential([keras.Input((sizes[0][0],)), *layers, keras.layers.Dense(sizes[-1][1])])
    for variable, value in itertools.zip_longest(model.trainable_variables, problem.params):
        variable.assign(value)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM), loss, jit_compile=True)

    def run(count: int) -> tuple[float, float]:
        start, value = time.perf_counter(), np.nan
        for _ in range(count):
            model.reset_metrics()
            value = model.train_on_batch(*problem.data)
        return (time.perf_counter() - start) / count, float(np.asarray(value).reshape(-1)[0])

    return run


def contenders(asked: Asked) -> dict[str, Step]:
    """One, whatever its name."""
    import jaxtribute as jd

    jd.config.set_logical_cpu_devices(asked.devices)  # with a thread pool in which collectives cannot hang
    import keras

    if asked.devices > 1:
        distribution: Any = keras.distribution
        distribution.set_distribution(distribution.DataParallel(devices=jax.devices()))
    return {name: step_of(asked.problem) for name in asked.contenders}


if __name__ == "__main__":
    serve(contenders(parse()))
