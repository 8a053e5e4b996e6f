"""A job that fails and starts again: seconds of compiling in its second start, with and without kept programs.

    python -m benchmarks.restarts [--workers 4] [--rounds 5] [--json FILE]

Workers train the digits MLP with Adam; rank 0 fails after three steps of the first start. With `--max-restarts` the
launcher keeps what the workers compile, unless `JAX_ENABLE_COMPILATION_CACHE` forbids it. Rounds take turns.
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
from pathlib import Path

from rich.console import Console
from rich.table import Table

PROGRAM = """
import os, time
import jax, jax.numpy as jnp, numpy as np, optax
import jaxtribute as jd

spent = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: spent.append(seconds) if event.endswith("backend_compile_duration") else None
)
strategy = jd.MultiWorkerMirroredStrategy()
rank = strategy.cluster_resolver.task_id
random = np.random.default_rng(0)
with strategy.scope():
    sizes = [(64, 256), (256, 256), (256, 10)]
    kernels = [jd.Variable(random.normal(scale=0.1, size=size).astype(np.float32)) for size in sizes]
    optimizer = jd.Optimizer(optax.adam(1e-3), kernels)

def replica(x, y):
    def loss():
        h = jax.nn.relu(jax.nn.relu(x @ kernels[0]) @ kernels[1]) @ kernels[2]
        return optax.softmax_cross_entropy_with_integer_labels(h, y).mean() / strategy.num_replicas_in_sync
    value, grads = jd.value_and_grad(loss, kernels)()
    optimizer.apply_gradients(grads)
    return value

@jd.function
def step(x, y):
    return strategy.reduce("SUM", strategy.run(replica, (x, y)), axis=None)

x, y = jnp.asarray(random.normal(size=(64, 64)), jnp.float32), jnp.zeros(64, jnp.int32)
begun = time.monotonic()
for _ in range(3):
    loss = float(step(x, y))
restart = int(os.environ["JAXTRIBUTE_RESTART"])
print(f"RESULT {restart} {rank} {sum(spent):.4f} {time.monotonic() - begun:.4f} {loss:.6f}", flush=True)
if restart == 0 and rank == 0:
    raise SystemExit(3)
"""


def job(workers: int, kept: bool) -> dict[int, dict[str, float]]:
    """Runs one job; for each start the medians over the ranks, in seconds, and the loss."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "train.py"
        program.write_text(PROGRAM)
        command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers", str(workers), "--max-restarts", "1"]
        environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "true" if kept else "false"}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        done = subprocess.run(
            [*command, str(program)], capture_output=True, text=True, env=environment, timeout=600, check=False
        )
    if done.returncode:
        raise SystemExit(f"the job ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    found: dict[int, list[tuple[float, ...]]] = {}
    for line in re.findall(r"RESULT (\d+) \d+ (\S+) (\S+) (\S+)", done.stdout):
        found.setdefault(int(line[0]), []).append(tuple(map(float, line[1:])))
    names = ("compile_s", "three_steps_s", "loss")
    return {
        start: {name: statistics.median(row[place] for row in rows) for place, name in enumerate(names)}
        for start, rows in found.items()
    }


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rounds: dict[bool, list[dict[int, dict[str, float]]]] = {True: [], False: []}
    for number in range(arguments.rounds):
        for kept in (True, False) if number % 2 else (False, True):
            rounds[kept].append(job(arguments.workers, kept))
    losses = {one["loss"] for results in rounds.values() for result in results for one in result.values()}
    if len(losses) > 1:
        raise SystemExit(f"the losses differ: {sorted(losses)}")
    table = Table(title=f"{arguments.workers} workers, medians of {arguments.rounds} jobs")
    for column in ("start", "programs kept", "compiling, s", "three steps, s"):
        table.add_column(column)
    summary: list[dict[str, object]] = []
    for start in (0, 1):
        for kept in (False, True):
            row = {
                name: statistics.median(result[start][name] for result in rounds[kept])
                for name in ("compile_s", "three_steps_s")
            }
            summary.append({"start": start, "kept": kept, **row})
            table.add_row(
                str(start + 1), "yes" if kept else "no", f"{row['compile_s']:.2f}", f"{row['three_steps_s']:.2f}"
            )
    Console().print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
