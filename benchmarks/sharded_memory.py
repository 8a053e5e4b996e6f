"""Memory a device of fully sharded against mirrored training, and their losses and step times.

python -m benchmarks.sharded_memory --devices 4

Counts what lies on each device between steps: the shards of parameters and slots, and all live arrays of the process.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import jaxtribute as jd
from benchmarks.mlp import training

BAR = 0.3
TOLERANCE = 1e-5


@dataclass
class Measured:
    """One strategy's figures: bytes on the fullest device, median seconds a step, losses."""

    name: str
    state: int
    live: int
    seconds: float
    losses: list[float]


def fullest(arrays: Iterable[jax.Array]) -> int:
    """Bytes of the arrays' shards on the device that holds most of them."""
    held: dict[Any, int] = {}
    for array in arrays:
        for shard in array.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return max(held.values())


def measure(name: str, strategy: jd.Strategy, layers: list[int], batch: int, steps: int, rounds: int) -> Measured:
    """Trains a little under `strategy`, and says what it took."""
    step, variables = training(strategy, layers, batch, optax.adam(1e-3), shard_update=False)
    losses = [float(step()) for _ in range(4)]
    seconds: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        result = None
        for _ in range(steps):
            result = step()
        jax.block_until_ready(result)
        seconds.append((time.perf_counter() - start) / steps)
    gc.collect()
    state, live = fullest(v.stored for v in variables), fullest(jax.live_arrays())
    return Measured(name, state, live, statistics.median(seconds), losses)


def main() -> None:
    """Prints a table; ends with status 1 if the losses differ or the memory is above the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--layers", default="784-2048-2048-10")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--quick", action="store_true", help="a small model and few steps: to see that it runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    jd.config.set_logical_cpu_devices(arguments.devices)
    names = [f"CPU:{i}" for i in range(arguments.devices)]
    layers = [64, 256, 256, 10] if arguments.quick else [int(n) for n in arguments.layers.split("-")]
    makers: dict[str, Callable[[], jd.Strategy]] = {
        "mirrored": lambda: jd.MirroredStrategy(names),
        "fully sharded": lambda: jd.FullyShardedStrategy(names),
        "fully sharded, kept gathered": lambda: jd.FullyShardedStrategy(names, regather=False),
    }
    rounds = 2 if arguments.quick else 9
    found = [measure(name, make(), layers, arguments.batch, 5, rounds) for name, make in makers.items()]
    first = found[0]
    table = Table("strategy", "state a device", "ratio", "live a device", "ratio", "step")
    for one in found:
        cells = (f"{x / 2**20:.2f} MiB" for x in (one.state, one.live))
        state, live = cells
        ratios = f"{one.state / first.state:.3f}", f"{one.live / first.live:.3f}"
        table.add_row(one.name, state, ratios[0], live, ratios[1], f"{one.seconds * 1e3:.1f} ms")
    Console(width=100).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    for one in found[1:]:
        np.testing.assert_allclose(one.losses, first.losses, rtol=TOLERANCE)
        assert one.state <= BAR * first.state, f"{one.name}: {one.state / first.state:.3f} of mirrored, bar {BAR}"


if __name__ == "__main__":
    main()
