"""`fit`, `evaluate` or `predict` of a Keras model, under a strategy or without one."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.harness import serve

UNITS = 64, 256, 256, 10
EXAMPLES = 1797


def examples(batch: int, reverse: bool) -> tuple[Any, Any]:
    """Images, and labels that a linear model gives them; in batches of 48 without the last, partial one.

    Args:
      batch: examples a batch.
      reverse: True if the examples of each batch come in reverse, which changes nothing but the order of sums.
    """
    rng = np.random.default_rng(1)
    images = rng.random((EXAMPLES, UNITS[0]), np.float32)
    labels = (images @ rng.normal(size=(UNITS[0], UNITS[-1]))).argmax(1).astype(np.int32)
    if batch == 48:
        images, labels = (array[: len(array) // batch * batch] for array in (images, labels))
    if reverse:
        starts = range(batch, len(images), batch)
        order = np.concatenate([rows[::-1] for rows in np.split(np.arange(len(images)), starts)])
        images, labels = images[order], labels[order]
    return images, labels


def contender(call: str, batch: int, scope: Any, reverse: bool) -> Callable[[int], tuple[float, float]]:
    """A model in `scope`, and a function that makes some calls; returns seconds a batch and the loss, or a sum."""
    import keras

    images, labels = examples(batch, reverse)
    images = images.astype(keras.config.floatx())
    rng = np.random.default_rng(0)
    kernels = [rng.normal(size=pair) * np.sqrt(2 / pair[0]) for pair in pairwise(UNITS)]
    with scope:
        hidden = [keras.layers.Dense(units, "relu") for units in UNITS[1:-1]]
        model: Any = keras.Sequential([keras.layers.Input((UNITS[0],)), *hidden, keras.layers.Dense(UNITS[-1])])
        model.compile(
            keras.optimizers.SGD(0.05),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.set_weights([w for kernel in kernels for w in (kernel, np.zeros(kernel.shape[1]))])
    options = {"batch_size": batch, "verbose": 0}
    calls: dict[str, Callable[[int], float]] = {
        "fit": lambda count: model.fit(images, labels, epochs=count, shuffle=False, **options).history["loss"][-1],
        "evaluate": lambda count: [model.evaluate(images, labels, **options)[0] for _ in range(count)][-1],
        "predict": lambda count: [float(np.abs(model.predict(images, **options)).sum()) for _ in range(count)][-1],
    }
    batches = -(-len(images) // batch)

    def run(count: int) -> tuple[float, float]:
        start = time.perf_counter()
        told = calls[call](count)
        return (time.perf_counter() - start) / (count * batches), told

    return run


def scope_of(name: str, devices: int) -> Any:
    """The devices of this process as the contender has them, and the scope in which it makes its model."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf  # type: ignore[import-not-found]

        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
        return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)]).scope()
    import jaxtribute as jd

    jd.config.set_logical_cpu_devices(devices)
    if name == "jaxtribute":
        return jd.MirroredStrategy().scope()
    jd.config.prepare_cpu_backend()  # plain Keras has the library's pool and allocator, too
    if name == "keras.distribution":
        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    return contextlib.nullcontext()


def main() -> None:
    """Serves one contender."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--call", choices=["fit", "evaluate", "predict"], required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--contender", required=True)
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    scope = scope_of(given.contender, given.devices)
    import keras

    keras.config.set_floatx(given.dtype)
    reverse = given.contender == "keras-reversed"
    serve({given.contender: contender(given.call, given.batch, scope, reverse)})


if __name__ == "__main__":
    main()
