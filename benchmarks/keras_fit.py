"""`model.fit` on digits: 1,797 images on 4 logical devices, against Keras's own distribution and Keras on TensorFlow.

    python -m benchmarks.keras_fit [--tensorflow PYTHON] [--rounds N] [--quick] [--json FILE]

`PYTHON` is an interpreter that has TensorFlow and Keras; the environment variable JAXTRIBUTE_BENCH_TENSORFLOW names
one too. Without it, TensorFlow is left out. A turn is a `fit` of 3 epochs of a classifier of 64-256-256-10 units.
Batches of 50 leave a last one of 47, and 4 replicas never get equal parts of either: `keras.distribution` refuses that,
and Keras on TensorFlow fails when the first batch is not equal. They are compared on 1,776 images in batches of 48.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Peer, Result, alternate, ratio, serve

REPLICAS, EPOCHS, UNITS = 4, 3, (256, 256)
TENSORFLOW = "JAXTRIBUTE_BENCH_TENSORFLOW"


def main() -> None:
    """Measures, and prints what it finds against the bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keras_fit")
    parser.add_argument("--tensorflow", default=os.environ.get(TENSORFLOW), metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        PEERS[arguments.peer](arguments.data)
        return
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "digits.npz")
        write_data(data)
        report(measure(data, arguments.tensorflow, 2 if arguments.quick else arguments.rounds), arguments.json)


def measure(data: str, tensorflow: str | None, rounds: int) -> list[Result]:
    """Lets all take turns."""

    def peer(name: str, backend: str = "jax", python: str = sys.executable) -> Peer:
        return Peer("benchmarks.keras_fit", ["--peer", name, "--data", data], {"KERAS_BACKEND": backend}, python)

    own, plain, parallel = peer("jaxtribute"), peer("keras"), peer("dataparallel")
    peers = [own, plain, parallel]
    fifty = [(plain, "50", "Keras, 1 device, batch 50"), (own, "50", "jaxtribute, batch 50")]
    found = alternate(fifty, steps=EPOCHS, rounds=rounds, tolerance=1e-4)
    equal = [(parallel, "48", "DataParallel, batch 48"), (own, "48", "jaxtribute, batch 48")]
    if tensorflow:
        peers.append(peer("tensorflow", "tensorflow", tensorflow))
        equal.append((peers[-1], "48", "TensorFlow, batch 48"))
    found += alternate(equal, steps=EPOCHS, rounds=rounds, tolerance=1e-4)
    for one in peers:
        one.close()
    return found


def report(found: list[Result], path: Path | None) -> None:
    """Prints medians and the ratios that the bars are about."""
    by_name = {result.name: result for result in found}
    for result in found:
        low, high = min(result.seconds), max(result.seconds)
        print(
            f"{result.name:26} {result.median * 1e3:7.3f} ms a step   ({low * 1e3:.3f} to {high * 1e3:.3f})"
            f"   loss {result.loss:.6f}"
        )
    own = by_name["jaxtribute, batch 48"]
    ratios = {"DataParallel / jaxtribute (bar: at least 1)": ratio(by_name["DataParallel, batch 48"], own)}
    if "TensorFlow, batch 48" in by_name:
        ratios["TensorFlow / jaxtribute (bar: over 1)"] = ratio(by_name["TensorFlow, batch 48"], own)
    for name, value in ratios.items():
        print(f"{name:46} {value:.3f}")
    if path:
        results = {r.name: {"median": r.median, "seconds": r.seconds, "loss": r.loss} for r in found}
        path.write_text(json.dumps({"results": results, "ratios": ratios}, indent=1) + "\n")


def write_data(path: str) -> None:
    """Images, labels and initial weights, the same for all."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    sizes = (64, *UNITS, 10)
    kernels = [rng.normal(size=pair) * np.sqrt(2 / pair[0]) for pair in pairwise(sizes)]
    arrays = {f"kernel{i}": kernel.astype(np.float32) for i, kernel in enumerate(kernels)}
    np.savez(path, images=(images / 16).astype(np.float32), labels=labels.astype(np.int32), **arrays)


def contender(data: str, batch: int, scope: Callable[[], Any]) -> Callable[[int], tuple[float, float]]:
    """A model, and a function that fits it for some epochs; returns seconds a step and the last loss."""
    import keras

    with np.load(data) as arrays:
        images, labels = arrays["images"], arrays["labels"]
        kernels = [arrays[name] for name in sorted(arrays) if name.startswith("kernel")]
    if batch == 48:
        images, labels = (array[: len(array) // batch * batch] for array in (images, labels))
    with scope():
        hidden = [keras.layers.Dense(units, "relu") for units in UNITS]
        model = keras.Sequential([keras.layers.Input((64,)), *hidden, keras.layers.Dense(10)])
        model.compile(
            keras.optimizers.SGD(0.05),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.set_weights([w for kernel in kernels for w in (kernel, np.zeros(kernel.shape[1], np.float32))])
    steps = -(-len(images) // batch)

    def run(epochs: int) -> tuple[float, float]:
        start = time.perf_counter()
        history = model.fit(images, labels, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)
        return (time.perf_counter() - start) / (epochs * steps), history.history["loss"][-1]

    return run


def serve_jaxtribute(data: str) -> None:
    """Keras on JAX in the scope of a strategy."""
    import jaxtribute as jd

    jd.config.set_logical_cpu_devices(REPLICAS)
    strategy = jd.MirroredStrategy()
    serve({str(batch): contender(data, batch, strategy.scope) for batch in (50, 48)})


def serve_keras(data: str) -> None:
    """Keras on JAX, on one device."""
    serve({"50": contender(data, 50, contextlib.nullcontext)})


def serve_dataparallel(data: str) -> None:
    """Keras on JAX with its own distribution; devices, pool and allocator as jaxtribute sets them."""
    import jaxtribute as jd

    jd.config.set_logical_cpu_devices(REPLICAS)
    jd.config.prepare_cpu_backend()
    import keras

    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    serve({"48": contender(data, 48, contextlib.nullcontext)})


def serve_tensorflow(data: str) -> None:
    """Keras on TensorFlow."""
    import tensorflow as tf  # type: ignore[import-not-found]

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * REPLICAS)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])
    serve({"48": contender(data, 48, strategy.scope)})


PEERS: Mapping[str, Callable[[str], None]] = {
    "jaxtribute": serve_jaxtribute,
    "keras": serve_keras,
    "dataparallel": serve_dataparallel,
    "tensorflow": serve_tensorflow,
}

if __name__ == "__main__":
    main()
