"""Central storage against mirrored variables on the same devices, and its losses against one device.

python -m benchmarks.central_storage --devices 4
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import optax

import jaxtribute as jd
from benchmarks.mlp import LEARNING_RATE, MOMENTUM, training


def seconds_a_step(step: Callable[[], Any], count: int) -> float:
    """Runs `count` steps without waiting between them."""
    start = time.perf_counter()
    result = None
    for _ in range(count):
        result = step()
    float(result)  # pyright: ignore[reportArgumentType]
    return (time.perf_counter() - start) / count


def main() -> None:
    """Prints the ratio of step times, and how far the losses are from one device's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--layers", default="64-256-256-10")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    jd.config.set_logical_cpu_devices(arguments.devices)
    layers = [int(size) for size in arguments.layers.split("-")]
    strategies = {"one device": jd.OneDeviceStrategy("cpu:0"), "mirrored": jd.MirroredStrategy(),
                  "central": jd.CentralStorageStrategy()}  # fmt: skip
    sgd = optax.sgd(LEARNING_RATE, momentum=MOMENTUM)
    steps = {name: training(strategy, layers, arguments.batch, sgd)[0] for name, strategy in strategies.items()}
    losses = {name: np.array([float(step()) for _ in range(50)]) for name, step in steps.items()}
    gap = np.max(np.abs(losses["central"] - losses["one device"]) / np.abs(losses["one device"]))
    print(f"losses of 50 steps: central is within {gap:.1e} (relative) of one device")
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(arguments.rounds):
        for name, step in steps.items():
            seconds[name].append(seconds_a_step(step, arguments.steps))
    for name, taken in seconds.items():
        print(f"{name:12} {1e3 * statistics.median(taken):.3f} ms a step")
    ratio = statistics.median(c / m for c, m in zip(seconds["central"], seconds["mirrored"], strict=True))
    print(f"central / mirrored: {ratio:.2f}")


if __name__ == "__main__":
    main()
