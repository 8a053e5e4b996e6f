"""What a step costs alone and as one of several in a call: `strategy.run_steps` against a Python loop.

python -m benchmarks.run_steps --devices 1 --devices 2 --devices 4 --devices 8

The dispatch of a tiny model, fed with a batch that is on the devices already, so that the input costs nothing; and the
digits MLP over a distributed dataset, input included. Turns alternate; the state at the end must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import jaxtribute as jd
from benchmarks.mlp import LEARNING_RATE, MOMENTUM, loss_sum, problem
from jaxtribute._src.core.execution.feeds import Drawn, Feed

CALL = 16
WARMUP = 3
"""Turns that do not count: the first compiles, the next ones settle."""
DISPATCH_BAR = 1 / 3
"""What a step of the tiny model may take on one device of what it takes alone; on several none may be slower."""


@dataclass
class Row:
    """One problem on some devices: median microseconds a step, and the median ratio of neighbouring turns."""

    problem: str
    devices: int
    single_us: float
    several_us: float
    ratio: float
    by_hand_us: float | None = None


class SameBatch(Feed):
    """Hands out one batch, which is on the devices, for ever."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __iter__(self) -> SameBatch:
        return self

    def __next__(self) -> Any:
        return self._batch

    def draw(self) -> Drawn:
        """The batch."""
        return Drawn(self._batch, None, None)

    def hand_back(self, batches: Sequence[Drawn]) -> None:
        """Takes nothing back, as there is always more."""


class Training:
    """A model, its compiled step and its data under one strategy."""

    def __init__(self, strategy: jd.Strategy, params: Any, arrays: Any, loss: Callable[..., Any]) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.variables = [jd.Variable(p) for p in params]
        optimizer = jd.Optimizer(optax.sgd(LEARNING_RATE, momentum=MOMENTUM), self.variables)
        size = len(arrays[0])

        def replica_step(*batch: Any) -> Any:
            value, grads = jd.value_and_grad(lambda: loss(self.variables, *batch) / size, self.variables)()
            optimizer.apply_gradients(grads)
            return value

        self.step = jd.function(lambda batch: strategy.reduce("SUM", strategy.run(replica_step, batch), axis=None))

    def one_by_one(self, iterator: Any, steps: int) -> Any:
        """A Python loop over the iterator."""
        value = None
        for _ in range(steps):
            value = self.step(next(iterator))
        return value

    def several(self, iterator: Any, steps: int) -> Any:
        """The same by `run_steps`."""
        return self.strategy.run_steps(self.step, iterator, steps, steps_per_call=CALL)


def strategy_on(devices: int) -> jd.Strategy:
    """One device, or mirrored on several."""
    names = [f"CPU:{i}" for i in range(devices)]
    return jd.OneDeviceStrategy(names[0]) if devices == 1 else jd.MirroredStrategy(names)


def by_hand(steps: int, rounds: int) -> float:
    """Median seconds a step of the tiny model in a hand-written loop of 16 steps a call, on one device."""

    def one(w: Any, m: Any, x: Any) -> Any:
        value, grad = jax.value_and_grad(lambda w: tiny_loss([w], x) / len(x))(w)
        m = MOMENTUM * m + grad
        return w - LEARNING_RATE * m, m, value

    def loop(w: Any, m: Any, *xs: Any) -> Any:
        values: list[Any] = []
        for x in xs:
            w, m, value = one(w, m, x)
            values.append(value)
        return w, m, jnp.stack(values)

    jitted = jax.jit(loop, donate_argnums=(0, 1))
    params, arrays = tiny()
    w, m, x = jnp.asarray(params[0]), jnp.zeros_like(params[0]), jnp.asarray(arrays[0])
    found: list[float] = []
    for _ in range(rounds + 1):
        start, values = time.perf_counter(), None
        for _ in range(steps // CALL):
            w, m, values = jitted(w, m, *[x] * CALL)
        jax.block_until_ready(values)
        found.append((time.perf_counter() - start) / (steps // CALL * CALL))
    return statistics.median(found[1:])


def tiny() -> tuple[list[np.ndarray], tuple[np.ndarray]]:
    """One 4x4 matrix and eight examples."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(4, 4)).astype(np.float32) / 2], (rng.normal(size=(8, 4)).astype(np.float32),)


def tiny_loss(variables: Any, x: Any) -> Any:
    """The sum of squares of a product."""
    return ((x @ jnp.asarray(variables[0])) ** 2).sum()


def digits_loss(variables: Any, images: Any, labels: Any) -> Any:
    """That of the digits MLP."""
    return loss_sum([v.read_value() for v in variables], images, labels)


def measure(name: str, devices: int, steps: int, rounds: int) -> Row:
    """Lets the two ways take turns."""
    strategy = strategy_on(devices)
    if name == "dispatch":
        params, arrays = tiny()
        loss: Callable[..., Any] = tiny_loss
    else:
        params, *arrays = problem([64, 256, 256, 10], 256)
        loss = digits_loss
    pair = [Training(strategy, params, arrays, loss) for _ in range(2)]
    (batch,) = strategy.experimental_distribute_dataset([tuple(arrays)])
    dataset = strategy.experimental_distribute_dataset([tuple(arrays)] * steps)
    times: tuple[list[float], list[float]] = ([], [])
    steps = steps * 4 if name == "dispatch" else steps
    for turn in range(rounds + WARMUP):
        for training, run, seconds in zip(pair, (Training.one_by_one, Training.several), times, strict=True):
            iterator = SameBatch(batch) if name == "dispatch" else iter(dataset)
            start = time.perf_counter()
            jax.block_until_ready(run(training, iterator, steps))
            if turn >= WARMUP:
                seconds.append((time.perf_counter() - start) / steps)
    for a, b in zip(pair[0].variables, pair[1].variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    hand = by_hand(steps, rounds) * 1e6 if name == "dispatch" and devices == 1 else None
    single, several = (statistics.median(one) * 1e6 for one in times)
    return Row(name, devices, single, several, ratio, hand)


def main() -> None:
    """Prints a table; each number of devices is measured in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, action="append", help="1, 2, 4 and 8 by default")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs, not to quote")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    steps, rounds = (CALL * 2, 3) if arguments.quick else (CALL * 8, 15)
    if arguments.child:
        (devices,) = arguments.devices
        jd.config.set_logical_cpu_devices(devices)
        print(json.dumps([asdict(measure(name, devices, steps, rounds)) for name in ("dispatch", "digits")]))
        return
    rows: list[Row] = []
    for devices in arguments.devices or [1, 2, 4, 8]:
        flags = ["--child", "--devices", str(devices), *(["--quick"] if arguments.quick else [])]
        command = [sys.executable, "-m", "benchmarks.run_steps", *flags]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout
        rows.extend(Row(**row) for row in json.loads(output.splitlines()[-1]))
    table = Table("problem", "devices", "one a call", f"{CALL} a call", "ratio", "bar", "met", "by hand, 16 a call")
    for row in rows:
        bar = 1.0 if row.devices > 1 else DISPATCH_BAR if row.problem == "dispatch" else None
        hand = "" if row.by_hand_us is None else f"{row.by_hand_us:.1f} us"
        met = ("", "") if bar is None else (f"<= {bar:.2f}", "yes" if row.ratio <= bar else "no")
        figures = f"{row.single_us:.1f} us", f"{row.several_us:.1f} us", f"{row.ratio:.3f}"
        table.add_row(row.problem, str(row.devices), *figures, *met, hand)
    Console(width=120).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
