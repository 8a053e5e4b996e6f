"""The input pipeline: distributing 50,000 images to 4 replicas, against TensorFlow and against doing it by hand.

    python -m benchmarks.input [--tensorflow PYTHON] [--rounds N] [--json FILE]

`PYTHON` is an interpreter that has TensorFlow; the environment variable JAXTRIBUTE_BENCH_TENSORFLOW names one too.
Without it, TensorFlow is left out. Each turn goes through one epoch, and the first batch is not counted: it waits for
threads to start and, with TensorFlow, for the shuffle buffer to fill.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Peer, Result, alternate, ratio, serve

EXAMPLES, BATCH, REPLICAS = 50_000, 256, 4
STEP_SECONDS = 0.005
TENSORFLOW = "JAXTRIBUTE_BENCH_TENSORFLOW"


def arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images of 32x32x3 bytes whose first byte is their label, and the labels."""
    images = np.random.default_rng(0).integers(0, 255, (EXAMPLES, 32, 32, 3), np.uint8)
    labels = images[:, 0, 0, 0].astype(np.int32)
    return images, labels


def epoch(elements: Iterable[Any], parts: Callable[[Any], Iterable[tuple[Any, Any]]]) -> tuple[float, float]:
    """Goes through an epoch. Returns seconds a batch and a checksum that any order gives.

    Args:
      elements: the dataset.
      parts: waits for an element, and gives each replica's images and labels.
    """
    held: list[list[Any]] = []
    start, batches = 0.0, -1
    for element in elements:
        pieces = list(parts(element))
        held.append([labels for _, labels in pieces])
        if batches < 0:
            start = time.perf_counter()
            for images, labels in pieces:
                assert (np.asarray(images)[:, 0, 0, 0] == np.asarray(labels)).all(), "images lost their labels"
        batches += 1
    seconds = (time.perf_counter() - start) / batches
    labels = np.concatenate([np.asarray(piece) for pieces in held for piece in pieces])
    assert len(labels) == EXAMPLES, f"{len(labels)} of {EXAMPLES} examples arrived"
    return seconds, float(labels.mean())


def peer() -> None:
    """Serves the contenders of this library and those by hand."""
    import jaxtribute as jd

    jd.config.set_logical_cpu_devices(REPLICAS)

    import jax

    from jaxtribute._src.core.values.mesh import ReplicaMesh
    from jaxtribute.input import InputContext, InputOptions, distribute_dataset, make_numpy_dataset

    jd.config.prepare_cpu_backend()
    mesh = ReplicaMesh(jax.devices()[:REPLICAS])
    context = InputContext(1, 0, REPLICAS)
    images, labels = arrays()
    seed = iter(range(1_000_000))

    def batched() -> Any:
        return make_numpy_dataset((images, labels)).shuffle(next(seed)).batch(BATCH)

    def recordwise() -> Any:
        records = make_numpy_dataset((images, labels)).map(lambda record: record)
        return records.shuffle(next(seed)).batch(BATCH)

    def replicas(element: Any) -> list[tuple[Any, Any]]:
        jax.block_until_ready(element)
        return list(zip(element[0].values, element[1].values, strict=True))

    def shards(element: Any) -> list[tuple[Any, Any]]:
        jax.block_until_ready(element)
        pieces = [[shard.data for shard in array.addressable_shards] for array in element]
        return list(zip(*pieces, strict=True))

    def by_hand(dataset: Any) -> Iterator[Any]:
        for batch in dataset:
            yield jax.device_put(batch, mesh.split)

    contenders = {
        "arrays": lambda _: epoch(distribute_dataset(batched(), mesh, None, context), replicas),
        "records": lambda _: epoch(distribute_dataset(recordwise(), mesh, None, context), replicas),
        "records by hand": lambda _: epoch(by_hand(recordwise()), shards),
        **_steps(lambda: distribute_dataset(batched().repeat(), mesh, InputOptions(), context), mesh),
    }
    serve(contenders)


def _steps(dataset: Callable[[], Any], mesh: Any) -> dict[str, Callable[[int], tuple[float, float]]]:
    """A step that computes for about 5 ms, on one batch again and again, and on the batches of a dataset."""
    import jax
    import jax.numpy as jnp

    @partial(jax.jit, static_argnums=2)
    def step(images: jax.Array, weights: jax.Array, turns: int) -> jax.Array:
        hidden = images.reshape(len(images), -1)[:, :512].astype(jnp.float32) / 255
        return jax.lax.fori_loop(0, turns, lambda _, h: jnp.tanh(h @ weights), hidden).sum(axis=1)

    weights = jax.device_put(np.eye(512, dtype=np.float32), mesh.replicated)
    iterator = iter(dataset())
    fixed = next(iterator)

    def run(next_element: Callable[[], Any], count: int, turns: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            jax.block_until_ready(step(next_element()[0].data, weights, turns))
        return (time.perf_counter() - start) / count

    turns = next(n for n in range(1, 200) if run(lambda: fixed, 3, n) > 0 and run(lambda: fixed, 20, n) >= STEP_SECONDS)
    return {
        "step alone": lambda count: (run(lambda: fixed, count, turns), 0.0),
        "step with input": lambda count: (run(lambda: next(iterator), count, turns), 0.0),
    }


def main() -> None:
    """Measures, and prints what it finds against the bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input")
    parser.add_argument("--tensorflow", default=os.environ.get(TENSORFLOW), metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        peer()
        return
    own = Peer("benchmarks.input", ["--peer"])
    epochs = [(own, "arrays", "jaxtribute, arrays")]
    if arguments.tensorflow:
        epochs.append((Peer("benchmarks.input_tensorflow", [], python=arguments.tensorflow), "arrays", "TensorFlow"))
    found = alternate(epochs, steps=0, rounds=arguments.rounds)
    found += alternate(
        [(own, "records", "jaxtribute, records"), (own, "records by hand", "by hand, records")],
        steps=0,
        rounds=arguments.rounds,
        warmup=1,
    )
    found += alternate(
        [(own, "step with input", "5 ms step with input"), (own, "step alone", "5 ms step alone")],
        steps=100,
        rounds=3 * arguments.rounds,
    )
    for process in {id(one): one for one, _, _ in epochs}.values():
        process.close()
    report(found, arguments.json)


def report(found: list[Result], path: Path | None) -> None:
    """Prints medians and the ratios that the bars are about."""
    by_name = {result.name: result for result in found}
    for result in found:
        low, high = min(result.seconds), max(result.seconds)
        print(f"{result.name:24} {result.median * 1e3:7.3f} ms a batch   ({low * 1e3:.3f} to {high * 1e3:.3f})")
    ratios: dict[str, float] = {}
    if "TensorFlow" in by_name:
        ratios["TensorFlow / arrays (bar: at least 5)"] = ratio(by_name["TensorFlow"], by_name["jaxtribute, arrays"])
    ratios["by hand / records (bar: at least 0.95)"] = ratio(
        by_name["by hand, records"], by_name["jaxtribute, records"]
    )
    ratios["step with input / alone (bar: under 1.05)"] = ratio(
        by_name["5 ms step with input"], by_name["5 ms step alone"]
    )
    for name, value in ratios.items():
        print(f"{name:44} {value:.3f}")
    if path:
        medians = {result.name: {"median": result.median, "seconds": result.seconds} for result in found}
        spread = statistics.median(max(result.seconds) / min(result.seconds) for result in found)
        path.write_text(json.dumps({"results": medians, "ratios": ratios, "spread": spread}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
