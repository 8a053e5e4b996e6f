"""Steps on one accelerator, by the library and by hand, beside what `jaxtribute plan --topology` predicts for it.

    python -m benchmarks.accelerator [--quick] [--gpt] [--topology h100:1x1] [--json FILE]

Needs an accelerator, and its compiler for what is predicted. The steps of a problem take turns in one process;
those of the GPT, of 125 million parameters, are of one process each, whose memory is told. `--quick` runs small ones,
on a CPU too: to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

import jaxtribute as jd
from benchmarks.harness import DEADLINE_S, ROOT, TRAINING_SCRIPT, Peer, inherited
from benchmarks.peers.jax_steps import CALL, by_hand, by_jaxtribute
from benchmarks.problems import make

PROBLEMS = (
    ("64-256-256-10", 256),
    ("784-2048-2048-10", 1024),
    ("conv", 256),
    ("transformer", 16),
    ("small-100", 256),
)
GPT = str(ROOT / "examples" / "gpt.py")
WITHOUT_ALL_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def predicted(topology: str | None, script: str, *arguments: str) -> dict[str, Any]:
    """Seconds a step and bytes that the compiler predicts; none without a topology."""
    if not topology:
        return {"predicted": None, "predicted_memory": None}
    # Other sizes are not asked for.
    command = [sys.executable, "-m", "jaxtribute", "plan", "--topology", topology, "--seconds", "0", "--json"]
    done = subprocess.run(
        [*command, script, *arguments],
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        env={**inherited(), "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    one = json.loads(done.stdout.splitlines()[-1])["compiled"]
    return {"predicted": one["step"], "predicted_memory": one["memory"]["total"]}


def problem_row(name: str, batch: int, topology: str | None, rounds: int) -> dict[str, Any]:
    """The steps of one problem, in turns."""
    problem, devices = make(name, batch), jax.local_devices()[:1]
    steps = {
        "hand": by_hand("named-sharding", problem, devices),
        "jaxtribute": by_jaxtribute("jaxtribute", problem, jd.MirroredStrategy(1)),
        "calls": by_jaxtribute(f"jaxtribute-{CALL}", problem, jd.MirroredStrategy(1)),
    }
    losses = {key: step(CALL)[1] for key, step in steps.items()}
    assert all(math.isclose(loss, losses["hand"], rel_tol=1e-4) for loss in losses.values()), losses
    taken: dict[str, list[float]] = {key: [] for key in steps}
    for number in range(rounds):
        for key in random.Random(number).sample(list(steps), len(steps)):
            taken[key].append(steps[key](20 * CALL if rounds > 2 else CALL)[0])
    ratio = statistics.median(map(float.__truediv__, taken["jaxtribute"], taken["hand"]))
    middle = {key: statistics.median(each) for key, each in taken.items()}
    script = str(TRAINING_SCRIPT.relative_to(ROOT))
    return {"problem": f"{name}, batch {batch}", **middle, "ratio": ratio} | predicted(
        topology, script, name, str(batch)
    )


def gpt_row(size: str, topology: str | None, rounds: int) -> dict[str, Any]:
    """The steps of the GPT, one contender after the other, and the most memory that each held."""
    row: dict[str, Any] = {"problem": f"GPT {size}", "calls": None}
    losses: list[float] = []
    for name in ("hand", "jaxtribute"):
        arguments = ["--contender", name, "--size", size]
        peer = Peer("benchmarks.peers.gpt_steps", arguments, env=WITHOUT_ALL_MEMORY)
        try:
            losses.append(peer.steps(name, 1)[1])
            row[name] = statistics.median(peer.steps(name, 4)[0] for _ in range(rounds))
            row[f"{name}_memory"] = peer.steps("peak", 1)[0]
        finally:
            peer.close()
    assert math.isclose(*losses, rel_tol=1e-3), losses
    row["ratio"] = row["jaxtribute"] / row["hand"]
    return row | predicted(topology, GPT, "--size", size, "--devices", "1")


def shown(rows: list[dict[str, Any]]) -> Table:
    """All rows for people."""
    table = Table(
        "step", "by hand", "jaxtribute", "ratio", f"{CALL} a call", "predicted", "its memory", "peak", "by hand"
    )
    for row in rows:
        times = [f"{row[key] * 1e3:.3g} ms" if row[key] else "" for key in ("hand", "jaxtribute", "calls", "predicted")]
        memory = [row.get(key) for key in ("predicted_memory", "jaxtribute_memory", "hand_memory")]
        told = [f"{each / 1e9:.3g} GB" if each and not math.isnan(each) else "" for each in memory]
        table.add_row(row["problem"], *times[:2], f"{row['ratio']:.3f}", *times[2:], *told)
    return table


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small steps, on a CPU too: to see that it runs")
    parser.add_argument(
        "--topology", help="what the accelerator is called, such as h100:1x1; without it nothing is predicted"
    )
    parser.add_argument("--gpt", action="store_true", help="the steps of the GPT alone")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    asked = parser.parse_args()
    os.environ.update(WITHOUT_ALL_MEMORY)
    kind, rounds = jax.local_devices()[0].device_kind, 2 if asked.quick else 9
    if jax.default_backend() == "cpu" and not asked.quick:
        parser.error(
            "there is no accelerator here. HINT: python -m benchmarks run measures CPUs; --quick tries this one."
        )
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)  # others may be cut off
        if asked.json:
            asked.json.write_text(json.dumps({"device": kind, "jax": jax.__version__, "rows": rows}, indent=1) + "\n")

    for one in () if asked.gpt else PROBLEMS[: 1 if asked.quick else None]:
        add(problem_row(*one, asked.topology, rounds))
    add(gpt_row("small" if asked.quick else "125m", asked.topology, rounds))
    Console(width=150).print(f"{kind}, jax {jax.__version__}", shown(rows))


if __name__ == "__main__":
    main()
