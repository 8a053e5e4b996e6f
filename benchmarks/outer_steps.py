"""Local SGD between islands: the loss after so many examples, beside synchronous training; and a run with kills.

    python -m benchmarks.outer_steps [--quick] [--seeds 3] [--problem gpt] [--kills 20] [--json FILE]

Islands take as many steps as synchronous training, each on its rows of the same batches, and meet after 20.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.soak.elastic import Tail

from benchmarks.harness import ROOT, inherited

PROGRAM = ROOT / "benchmarks" / "peers" / "outer_steps.py"
EVERY, BAR, DEADLINE_S = 20, 1.01, 600.0
STEPS = {"digits": 240, "gpt": 400}
RATES = {"digits": (0.002, 0.005), "gpt": (0.001, 0.003)}
"""Of Adam, inside."""
OUTER = "0.7,0.9"
"""Learning rate and Nesterov momentum outside."""
ISLANDS = (2, 4)


def command_of(folder: Path, problem: str, rate: float, steps: int, seed: int, *more: str) -> list[str]:
    """The command line of the program, without the interpreter."""
    settings = {"problem": problem, "rate": rate, "steps": steps, "seed": seed}
    return [str(PROGRAM), str(folder), *(f"--{name}={value}" for name, value in settings.items()), *more]


def launched(islands: int, restarts: int, arguments: list[str], output: Any) -> subprocess.Popen[bytes]:
    """A job of islands."""
    command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--elastic", "--workers", str(islands)]
    command += ["--devices-per-worker", "1", "--max-restarts", str(restarts), "--spares", str(int(restarts > 0))]
    return subprocess.Popen([*command, *arguments], cwd=ROOT, env=inherited(), stdout=output, stderr=subprocess.STDOUT)


def loss_of(problem: str, rate: float, steps: int, seed: int, islands: int) -> float:
    """The loss after so many steps; of synchronous training for no islands."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not islands:
            command = [sys.executable, *command_of(folder, problem, rate, steps, seed)]
            subprocess.run(command, cwd=ROOT, env=inherited(), check=True, timeout=DEADLINE_S)
        else:
            arguments = command_of(folder, problem, rate, steps, seed, f"--every={EVERY}", f"--outer={OUTER}")
            with (folder / "output").open("wb") as output:
                job = launched(islands, 0, arguments, output)
                ended = job.wait(DEADLINE_S)
            if ended:
                raise RuntimeError((folder / "output").read_text())
        return float((folder / "loss").read_text())


def killed(problem: str, rate: float, kills: int, islands: int, pace: float) -> tuple[float, float, int]:
    """The loss of a run with kills, the longest wait for a step of an island that lived on, and the steps."""
    chance, steps = random.Random(0), STEPS[problem] + 40 * EVERY * kills
    with tempfile.TemporaryDirectory() as name, (Path(name) / "output").open("wb") as output:
        folder = Path(name)
        settings = f"--every={EVERY}", f"--outer={OUTER}", f"--pace={pace}"
        job = launched(islands, 3 * kills, command_of(folder, problem, rate, steps, 0, *settings), output)
        tails = [Tail(folder / f"island-{rank}") for rank in range(islands)]
        try:
            gone = set[int]()
            for _ in range(kills):
                end = time.monotonic() + DEADLINE_S
                while not all((told := tail.read()) and told[-1].pid not in gone for tail in tails):
                    if job.poll() is not None or time.monotonic() > end:
                        raise RuntimeError((folder / "output").read_text())
                    time.sleep(0.01)
                time.sleep(chance.random())
                gone.add(pid := chance.choice(tails).read()[-1].pid)
                os.kill(pid, signal.SIGKILL)
            if job.wait(DEADLINE_S):
                raise RuntimeError((folder / "output").read_text())
        finally:
            job.kill()
            job.wait()
        waits = [
            late.moment - early.moment
            for tail in tails
            for early, late in zip(tail.read(), tail.told[1:], strict=False)
            if early.pid == late.pid
        ]
        return float((folder / "loss").read_text()), max(waits), steps


def main() -> int:
    """Trains all, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outer_steps")
    parser.add_argument("--quick", action="store_true", help="one seed, a few steps, two islands")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problem", action="append", choices=STEPS, help="all by default")
    parser.add_argument("--kills", type=int, default=20, help="in one more run of 3 islands on the digits; 0 for none")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    seeds, islands = range(1 if options.quick else options.seeds), ISLANDS[: 1 if options.quick else None]
    table = Table("problem", "Adam at", "examples", "synchronous", *(f"{count} islands" for count in islands), "met")
    found: list[dict[str, Any]] = []
    for problem in options.problem or STEPS:
        steps = 2 * EVERY if options.quick else STEPS[problem]
        for rate in RATES[problem]:
            counts = (0, *islands)
            losses = {
                count: statistics.mean(loss_of(problem, rate, steps, seed, count) for seed in seeds) for count in counts
            }
            met = all(losses[count] <= BAR * losses[0] for count in islands)
            found.append({"problem": problem, "rate": rate, "steps": steps, "losses": losses, "met": met})
            figures = [f"{losses[count]:.4f}" for count in counts]
            examples = steps * {"digits": 128, "gpt": 16}[problem]
            table.add_row(problem, f"{rate:g}", f"{examples:,}", *figures, "yes" if met else "no")
            print(found[-1], file=sys.stderr, flush=True)
    console = Console(width=110)
    console.print(table)
    if options.kills and not options.quick:
        loss, wait, steps = killed("digits", RATES["digits"][0], options.kills, 3, 0.005)
        calm = loss_of("digits", RATES["digits"][0], steps, 0, 3)
        console.print(f"{options.kills} kills in {steps} steps: loss {loss:.5f}, without {calm:.5f}; wait {wait:.1f} s")
        found.append({"kills": options.kills, "steps": steps, "loss": loss, "calm": calm, "longest_wait_s": wait})
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
