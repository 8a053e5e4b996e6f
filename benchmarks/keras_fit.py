"""`model.fit` on digits: 1,797 images on 4 logical devices, against Keras's own distribution and Keras on TensorFlow.

    python -m benchmarks.keras_fit [--tensorflow PYTHON] [--rounds N] [--quick] [--json FILE]

`PYTHON` is an interpreter that has TensorFlow and Keras; the environment variable JAXTRIBUTE_BENCH_TENSORFLOW names
one too. Without it, TensorFlow is left out. A turn is a `fit` of 3 epochs of a classifier of 64-256-256-10 units.
Batches of 50 leave a last one of 47, and 4 replicas never get equal parts of either: `keras.distribution` refuses that,
and Keras on TensorFlow fails when the first batch is not equal. They are compared on 1,776 images in batches of 48.

All losses must agree to 1e-4 after the 6 epochs before the clock starts. What becomes of that over 27 epochs is printed
besides, in batches of 50 on four devices and, for a measure of what rounding alone does, on one device by plain Keras
with the examples of each batch in reverse: in exact arithmetic all are equal; in float64 they are to the last digits.
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
DRIFT_EPOCHS = 6, 27
TENSORFLOW = "JAXTRIBUTE_BENCH_TENSORFLOW"


def main() -> None:
    """Measures, and prints what it finds against the bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keras_fit")
    parser.add_argument("--tensorflow", default=os.environ.get(TENSORFLOW), metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--dtype", default="float32", help=argparse.SUPPRESS)
    parser.add_argument("--peer", choices=[*PEERS, "drift"], help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer == "drift":
        serve_drift(arguments.data, arguments.dtype)
        return
    if arguments.peer:
        PEERS[arguments.peer](arguments.data)
        return
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "digits.npz")
        write_data(data)
        found = measure(data, arguments.tensorflow, 2 if arguments.quick else arguments.rounds)
        report(found, drift(data), arguments.json)


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


def drift(data: str) -> dict[str, list[float]]:
    """How far losses are from those of one device after some epochs, relative; by contender."""
    found: dict[str, list[float]] = {}
    for dtype in ("float32", "float64"):
        env = {"KERAS_BACKEND": "jax", "JAX_ENABLE_X64": str(int(dtype == "float64"))}
        one = Peer("benchmarks.keras_fit", ["--peer", "drift", "--data", data, "--dtype", dtype], env)
        losses: dict[str, list[float]] = {name: [] for name in one.names}
        done = 0
        for epochs in DRIFT_EPOCHS:
            for name in one.names:
                losses[name].append(one.steps(name, epochs - done)[1])
            done = epochs
        one.close()
        alone = losses.pop(one.names[0])
        for name, values in losses.items():
            pairs = zip(values, alone, strict=True)
            found[f"{name}, {dtype}"] = [abs(value - expected) / expected for value, expected in pairs]
    return found


def report(found: list[Result], drifts: dict[str, list[float]], path: Path | None) -> None:
    """Prints medians, the ratios that the bars are about, and how far losses drift apart."""
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
    print(f"losses against Keras on one device, relative, after {' and '.join(map(str, DRIFT_EPOCHS))} epochs:")
    for name, values in drifts.items():
        print(f"{name:46} " + "   ".join(f"{value:.1e}" for value in values))
    if path:
        results = {r.name: {"median": r.median, "seconds": r.seconds, "loss": r.loss} for r in found}
        path.write_text(json.dumps({"results": results, "ratios": ratios, "drift": drifts}, indent=1) + "\n")


def write_data(path: str) -> None:
    """Images, labels and initial weights, the same for all."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    sizes = (64, *UNITS, 10)
    kernels = [rng.normal(size=pair) * np.sqrt(2 / pair[0]) for pair in pairwise(sizes)]
    arrays = {f"kernel{i}": kernel.astype(np.float32) for i, kernel in enumerate(kernels)}
    np.savez(path, images=(images / 16).astype(np.float32), labels=labels.astype(np.int32), **arrays)


def contender(
    data: str, batch: int, scope: Callable[[], Any], *, reverse: bool = False
) -> Callable[[int], tuple[float, float]]:
    """A model, and a function that fits it for some epochs; returns seconds a step and the last loss.

    Args:
      data: the file.
      batch: examples a batch.
      scope: in what the model is made.
      reverse: whether the examples of each batch come in reverse, which changes nothing but the order of sums.
    """
    import keras

    with np.load(data) as arrays:
        images, labels = arrays["images"].astype(keras.config.floatx()), arrays["labels"]
        kernels = [arrays[name] for name in sorted(arrays) if name.startswith("kernel")]
    if reverse:
        order = np.concatenate(
            [rows[::-1] for rows in np.split(np.arange(len(images)), range(batch, len(images), batch))]
        )
        images, labels = images[order], labels[order]
    if batch == 48:
        images, labels = (array[: len(array) // batch * batch] for array in (images, labels))
    with scope():
        hidden = [keras.layers.Dense(units, "relu") for units in UNITS]
        model: Any = keras.Sequential([keras.layers.Input((64,)), *hidden, keras.layers.Dense(10)])
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


def serve_drift(data: str, dtype: str) -> None:
    """One device, the same with its sums in another order, and four."""
    import jaxtribute as jd

    jd.config.set_logical_cpu_devices(REPLICAS)
    import keras

    keras.config.set_floatx(dtype)
    contenders = {
        "one device": contender(data, 50, contextlib.nullcontext),
        "Keras, 1 device, batches reversed": contender(data, 50, contextlib.nullcontext, reverse=True),
        "jaxtribute, 4 devices": contender(data, 50, jd.MirroredStrategy().scope),
    }
    serve(contenders)


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
