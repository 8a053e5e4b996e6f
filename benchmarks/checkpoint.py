"""What a save costs a training: time that it blocks, and memory. 400 MB of variables, saved in the background.

    python -m benchmarks.checkpoint [--quick] [--json FILE] [--directory DIR]

Blocked is what the call of `save` takes, and what handing the next step to the device takes longer than otherwise:
copying what the step needs. Slowed is that and what all steps until the checkpoint is complete take longer, as they
share the cores with the writing. Extra memory is the highest mark of the process after all saves against that of the
steps before any.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import jaxtribute as jd
from benchmarks.__main__ import machine
from benchmarks.memory import resident

COUNT = 16
BARS = {"blocked": 0.10, "extra": 1.0}


class Training:
    """Steps that write all variables, as an optimizer does."""

    def __init__(self, megabytes: int) -> None:
        side = int((megabytes * 1e6 / 4 / COUNT) ** 0.5)
        with jd.OneDeviceStrategy("cpu:0").scope():
            self.variables = [
                jd.Variable(lambda: np.ones((side, side), np.float32), name=f"w{i}") for i in range(COUNT)
            ]
        self.size = sum(variable.size * 4 for variable in self.variables)
        self._x = jnp.ones((8, side), jnp.float32)

        @jd.function
        def step(x: jax.Array) -> jax.Array:
            def loss() -> jax.Array:
                hidden = x
                for variable in self.variables:
                    hidden = jnp.tanh(hidden @ variable.read_value())
                return (hidden**2).sum()

            value, grads = jd.value_and_grad(loss, self.variables)()
            for variable, grad in zip(self.variables, grads, strict=True):
                variable.assign_sub(1e-4 * grad)
            return value

        self._step = step

    def step(self) -> tuple[float, float]:
        """Runs one step to its end; returns the seconds until the device has it, and all seconds."""
        start = time.perf_counter()
        result = self._step(self._x)
        given = time.perf_counter() - start
        jax.block_until_ready(result)
        return given, time.perf_counter() - start


def measure(
    training: Training, checkpoint: jd.Checkpoint, directory: str, usual: tuple[float, float]
) -> dict[str, float]:
    """One save beside the training."""
    start = time.perf_counter()
    checkpoint.save(f"{directory}/ckpt")
    called_s = time.perf_counter() - start
    steps: list[tuple[float, float]] = []
    while checkpoint.saving:
        steps.append(training.step())
    total_s = time.perf_counter() - start
    checkpoint.wait()
    return {
        "save_s": total_s,
        "call_s": called_s,
        "usual_step_s": usual[1],
        "blocked_s": called_s + max(0.0, steps[0][0] - usual[0] if steps else 0.0),
        "slowed_s": called_s + sum(max(0.0, one - usual[1]) for _, one in steps),
        "steps": len(steps),
        "highest_bytes": resident("VmHWM"),
    }


def show(rows: list[dict[str, float]], alone: float, size: int, console: Console) -> dict[str, Any]:
    """Prints what was measured against the bars, and returns it."""
    middle = {name: median(row[name] for row in rows) for name in rows[0]}
    blocked = median(row["blocked_s"] / row["save_s"] for row in rows)
    extra = (rows[-1]["highest_bytes"] - alone) / size
    table = Table("measure", "median", "range", "bar", "met")
    for name in middle:
        values = [row[name] / (1e6 if name == "highest_bytes" else 1) for row in rows]
        table.add_row(name.replace("bytes", "MB"), f"{median(values):.3f}", f"{min(values):.3f} .. {max(values):.3f}")
    for name, value, bar in (("blocked / save", blocked, BARS["blocked"]), ("extra / variables", extra, BARS["extra"])):
        table.add_row(name, f"{value:.3f}", "", f"< {bar}", "yes" if value < bar else "no")
    console.print(table)
    return {
        "variables_bytes": size,
        "blocked_share": blocked,
        "extra_copies": extra,
        "alone_bytes": alone,
        "rounds": rows,
    }


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint")
    parser.add_argument("--quick", action="store_true", help="40 MB, few rounds: to see that it runs, not to quote")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--directory", help="where to save; a temporary folder by default")
    arguments = parser.parse_args()
    console = Console(width=120)
    jd.config.set_logical_cpu_devices(1)
    training = Training(40 if arguments.quick else 400)
    checkpoint = jd.Checkpoint(model=training.variables)
    for _ in range(3):
        training.step()
    times = [training.step() for _ in range(5 if arguments.quick else 40)]  # until memory grows no more
    usual = median(given for given, _ in times), median(all_of_it for _, all_of_it in times)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        jd.Checkpoint(small=jd.Variable(0.0)).save(f"{directory}/first", block=True)  # loads what Orbax loads once
        alone = resident("VmHWM")
        rounds = [measure(training, checkpoint, directory, usual) for _ in range(2 if arguments.quick else 7)]
    found = show(rounds, alone, training.size, console)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "checkpoint": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
