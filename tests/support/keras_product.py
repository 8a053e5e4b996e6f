"""Every Keras program of `keras_programs` in every arrangement of workers and devices, against plain Keras.

    PYTHONPATH=tests/support:tests KERAS_BACKEND=jax python -m keras_product [--arrangements 1x4 2x2] [NAME ...]
    PYTHONPATH=... python -m keras_product --topology v5e:2x2 [NAME ...]

prints for each program the largest relative difference of histories, results of `evaluate` and `predict`, and weights;
or what the compiler says of its step. The suite takes a sample.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import numpy as np

import jaxtribute as jd
import keras_programs
from jaxtribute.testing import run_multi_process

keras: Any = __import__("keras")
ARRANGEMENTS = "1x1", "1x2", "1x4", "2x1", "2x2"
TOLERANCE, NEAR_ZERO = 1e-5, 0.1
"""The largest relative difference; smaller numbers are compared as if they were as large as the second."""


def _called(made: Any) -> keras_programs.Made:
    """A model without an `Input`, built by a call outside of every function."""
    made(keras_programs.X[:2], training=True)
    made.compile("adam", keras_programs.crossentropy(), metrics=["accuracy"])
    return made, {"x": keras_programs.X, "y": keras_programs.Y}


def random_layers() -> keras_programs.Made:
    layers = keras_programs.layers
    kinds = [layers.Dense(6), layers.BatchNormalization(), layers.Dropout(0.3), layers.GaussianNoise(0.1)]
    return _called(keras.Sequential([*kinds, layers.Dense(3)]))


def unbuilt() -> keras_programs.Made:
    model = keras.Sequential([keras_programs.layers.Dense(4), keras_programs.layers.Dense(3)])
    model.compile("sgd", keras_programs.crossentropy(), metrics=["accuracy"])
    return model, {"x": keras_programs.X, "y": keras_programs.Y}


def bfloat16() -> keras_programs.Made:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return random_layers()
    finally:
        keras.config.set_dtype_policy(before)


FURTHER = {made.__name__: made for made in (random_layers, unbuilt, bfloat16)}
"""Programs whose numbers no device but one gives: they are compiled only."""


def compiled(name: str, topology: str, strategy: Callable[[], jd.Strategy]) -> Any:
    """What a compiler says of a program's first training step."""

    def train() -> None:
        with strategy().scope():
            keras_programs.trained(name, FURTHER.get(name))

    return jd.experimental.compile_for(topology, train)


def difference(expected: dict[str, Any], found: dict[str, Any]) -> tuple[float, str]:
    """The largest relative difference of two results, and what differs; infinite if one has other parts."""
    if expected.keys() != found.keys():
        return np.inf, f"has {sorted(expected.keys() ^ found.keys())}"
    largest = 0.0, "nothing"
    for name, value in expected.items():
        one, other = np.asarray(value, np.float64), np.asarray(found[name], np.float64)
        off = np.max(np.abs(one - other) / np.maximum(np.abs(one), NEAR_ZERO)) if one.shape == other.shape else np.inf
        largest = max(largest, (float(off), name))
    return largest


def on_this_worker(names: Sequence[str], kind: str) -> dict[str, dict[str, Any]]:
    """What programs come to, under a strategy over the process's devices, or over all workers'."""
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    jax.config.update("jax_numpy_rank_promotion", "allow")
    strategy = jd.MirroredStrategy() if kind == "alone" else jd.MultiWorkerMirroredStrategy()
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        with strategy.scope():
            found[name] = keras_programs.trained(name)
    return found


def over(arrangement: str, names: Sequence[str]) -> list[dict[str, dict[str, Any]]]:
    """What programs come to on each worker of an arrangement such as `2x1`."""
    workers, devices = map(int, arrangement.split("x"))
    kind = "alone" if workers == 1 else "workers"
    return run_multi_process(on_this_worker, workers=workers, devices=devices, timeout_s=1500, args=(names, kind))


def main() -> int:
    """Runs the product; returns the number of programs that differ, or that are not compiled."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arrangements", nargs="+", default=ARRANGEMENTS, choices=ARRANGEMENTS)
    parser.add_argument("--topology")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    wrong = 0
    if options.topology:
        for name in options.names or [*keras_programs.PROGRAMS, *FURTHER]:
            found = compiled(name, options.topology, jd.MirroredStrategy)
            print(name, found.replicas, found.batch, len(found.collectives), found.copied, flush=True)
        return 0
    names = options.names or list(keras_programs.PROGRAMS)
    plain = {name: keras_programs.trained(name) for name in names}
    for arrangement in options.arrangements:
        for rank, results in enumerate(over(arrangement, names)):
            for name in names:
                off, what = difference(plain[name], results[name])
                wrong += off > TOLERANCE
                mark = "  differs" if off > TOLERANCE else ""
                print(f"{arrangement} worker {rank} {name:16} {off:.1e} {what}{mark}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
