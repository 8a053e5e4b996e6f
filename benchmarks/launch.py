"""`jaxtribute launch` with the digits example: start-up time, and the same loss for every shape of the cluster.

python -m benchmarks.launch [--rounds 5] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.__main__ import machine

ROOT = Path(__file__).parents[1]
DIGITS = ROOT / "examples" / "digits.py"
SHAPES = ((1, 4), (2, 2), (4, 1))
TOLERANCE = 1e-4
START_S = 15.0
"""The longest that four local workers may take to their first finished step on two cores."""
DEADLINE_S = 300.0
_LOSS = re.compile(r"^(?:\[0\])? *(?:one-device|multi-worker) +([\d.]+) +[\d.]+% ", re.MULTILINE)

FIRST_STEP = """
import time
import jax.numpy as jnp, numpy as np
import jaxtribute as jd
strategy = jd.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = jd.Variable(np.zeros((64, 10), np.float32), name="weight")
@jd.function
def step(x):
    def replica(rows):
        gradient = jd.get_replica_context().all_reduce("SUM", rows.T @ (rows @ weight - 1.0))
        return jnp.sum(gradient)
    return strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)
data = strategy.experimental_make_numpy_dataset(np.ones((64, 64), np.float32)).batch(64)
for batch in strategy.experimental_distribute_dataset(data):
    float(step(batch))
print(f"finished at {time.time()}", flush=True)
"""


def launch(workers: int, devices: int, *program: str) -> str:
    """What the program printed."""
    command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers", str(workers)]
    command += ["--devices-per-worker", str(devices), *program]
    return run(command)


def run(command: list[str]) -> str:
    """What a command printed."""
    done = subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def loss_of(output: str) -> float:
    """The loss on the test images that the digits example ends with."""
    return float(_LOSS.findall(output)[-1])


def start_up(workers: int, rounds: int) -> list[float]:
    """Seconds from the command to the end of the last worker's first step."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "first_step.py"
        program.write_text(FIRST_STEP)
        for _ in range(rounds):
            start = time.time()
            ends = re.findall(r"finished at ([\d.]+)", launch(workers, 1, str(program)))
            assert len(ends) == workers
            found.append(max(map(float, ends)) - start)
    return found


def losses(epochs: int) -> list[dict[str, Any]]:
    """The final loss of each shape beside that of one device."""
    arguments = [str(DIGITS), "--epochs", str(epochs), "--strategy"]
    right = loss_of(run([sys.executable, *arguments, "one-device"]))
    rows: list[dict[str, Any]] = [{"shape": "OneDeviceStrategy", "loss": right}]
    for workers, devices in SHAPES:
        loss = loss_of(launch(workers, devices, *arguments, "multi-worker"))
        difference = abs(loss - right) / right
        rows.append({"shape": f"{workers} x {devices}", "loss": loss, "difference": difference})
    return rows


def show(start: dict[int, list[float]], rows: list[dict[str, Any]]) -> None:
    """Prints both tables."""
    console = Console(width=100)
    table = Table("workers", "first finished step (s, median)", "range", "bar", "met")
    for workers, seconds in start.items():
        median = statistics.median(seconds)
        bar = START_S if workers == 4 else None
        met = "" if bar is None else "yes" if max(seconds) <= bar else "no"
        spread = f"{min(seconds):.1f} .. {max(seconds):.1f}"
        table.add_row(str(workers), f"{median:.1f}", spread, f"<= {bar:g}" if bar else "", met)
    console.print(table)
    table = Table("workers x devices", "loss", "relative difference", "bar", "met")
    for row in rows:
        difference = row.get("difference")
        met = "" if difference is None else "yes" if difference <= TOLERANCE else "no"
        shown = "" if difference is None else f"{difference:.1e}"
        bar = "" if difference is None else f"<= {TOLERANCE:g}"
        table.add_row(row["shape"], f"{row['loss']:.6f}", shown, bar, met)
    console.print(table)


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launch")
    parser.add_argument("--rounds", type=int, default=5, help="starts for each number of workers (5)")
    parser.add_argument("--quick", action="store_true", help="one start, two epochs: to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    start = {workers: start_up(workers, 1 if arguments.quick else arguments.rounds) for workers in (1, 2, 4)}
    rows = losses(2 if arguments.quick else 15)
    show(start, rows)
    if arguments.json:
        found = {"command": f"python -m benchmarks.launch {' '.join(sys.argv[1:])}", "machine": machine()}
        found |= {"start_up_s": start, "losses": rows}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
