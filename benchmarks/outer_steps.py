"""Local SGD between islands: the loss after so many examples, beside synchronous training; and a run with kills.

    python -m benchmarks.outer_steps [--quick] [--seeds 3] [--problem gpt] [--kills 20] [--json FILE] [-- --overlap=10]

Islands take as many steps as synchronous training, each on its rows of the same batches, meet after 20, and go on with
the mean of their parameters, or a little beyond it. The learning rate falls to zero; the loss is that of examples which
were not trained on. What follows `--` is for the islands' program: see `benchmarks/peers/outer_steps.py`.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.soak.elastic import Tail

from benchmarks.harness import ROOT, inherited

PROGRAM = ROOT / "benchmarks" / "peers" / "outer_steps.py"
EVERY, BAR, DEADLINE_S = 20, 1.01, 600.0
ISLANDS = (2, 4)


@dataclass(frozen=True)
class Settings:
    """Training of a problem.

    Attributes:
      steps: of all, over which the learning rate falls to zero.
      rates: that are tried; synchronous training and islands are compared at their best ones.
      warm: steps before the islands part.
      ramp: steps in which the rate rises.
      inner: the optimizer inside.
      decay: of weights.
      outer: learning rate and Nesterov momentum outside.
    """

    steps: int
    rates: tuple[float, ...]
    warm: int = 0
    ramp: int = 0
    inner: str = "adamw"
    decay: float = 0.0
    outer: str = "1,0"


SETTINGS = {
    "digits": Settings(400, (0.01, 0.014, 0.02)),
    "gpt": Settings(800, (0.015, 0.02, 0.03), warm=400, ramp=20, inner="muon", outer="1,0.5"),
}
KILLED = Settings(1000, (0.01,), decay=1.0)
"""For the run with kills. Weights decay, so that the loss says more of the problem than of chance."""
STEPS_A_KILL, PACE_S = 200, 0.05


def command_of(folder: Path, problem: str, settings: Settings, rate: float, seed: int, *more: str) -> list[str]:
    """The command line of the program, without the interpreter."""
    given = {name: value for name, value in asdict(settings).items() if name != "rates"}
    given |= {"problem": problem, "rate": rate, "seed": seed}
    return [str(PROGRAM), str(folder), *(f"--{name}={value}" for name, value in given.items()), *more]


def launched(islands: int, restarts: int, arguments: list[str], output: Any) -> subprocess.Popen[bytes]:
    """A job of islands."""
    command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--elastic", "--workers", str(islands)]
    command += ["--devices-per-worker", "1", "--max-restarts", str(restarts), "--spares", str(int(restarts > 0))]
    return subprocess.Popen([*command, *arguments], cwd=ROOT, env=inherited(), stdout=output, stderr=subprocess.STDOUT)


def loss_of(problem: str, settings: Settings, rate: float, seed: int, islands: int, more: Sequence[str] = ()) -> float:
    """The loss at the end of training; of synchronous training for no islands."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = command_of(folder, problem, settings, rate, seed)
        if not islands:
            subprocess.run([sys.executable, *command], cwd=ROOT, env=inherited(), check=True, timeout=DEADLINE_S)
        else:
            with (folder / "output").open("wb") as output:
                job = launched(islands, 0, [*command, f"--every={EVERY}", *more], output)
                ended = job.wait(DEADLINE_S)
            if ended:
                raise RuntimeError((folder / "output").read_text())
        return float((folder / "loss").read_text())


def killed(settings: Settings, kills: int, islands: int, more: Sequence[str]) -> tuple[float, float]:
    """The loss of a run with kills, and the longest wait for a step of an island that lived on."""
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as name, (Path(name) / "output").open("wb") as output:
        folder = Path(name)
        command = command_of(
            folder, "digits", settings, settings.rates[0], 0, f"--every={EVERY}", f"--pace={PACE_S}", *more
        )
        job = launched(islands, 3 * kills, command, output)
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
        return float((folder / "loss").read_text()), max(waits)


def compared(
    problem: str, settings: Settings, counts: Sequence[int], seeds: Sequence[int], more: Sequence[str]
) -> dict[str, Any]:
    """The mean losses of a problem at each rate and number of islands, 0 for synchronous training, and the best."""
    losses = dict[float, dict[int, float]]()
    for rate in settings.rates:
        losses[rate] = {
            count: statistics.mean(loss_of(problem, settings, rate, seed, count, more) for seed in seeds)
            for count in counts
        }
        print(problem, rate, losses[rate], file=sys.stderr, flush=True)
    best = {count: min(each[count] for each in losses.values()) for count in counts}
    met = all(best[count] <= BAR * best[0] for count in counts)
    return {"problem": problem, "settings": asdict(settings), "losses": losses, "best": best, "met": met}


def shown(results: Sequence[dict[str, Any]], counts: Sequence[int]) -> Table:
    """The losses as a table."""
    names = ["synchronous", *(f"{count} islands" for count in counts[1:])]
    table = Table("problem", "steps", "rate", *names, "within 1 %")
    for result in results:
        first = result["problem"], str(result["settings"]["steps"])
        for rate, losses in result["losses"].items():
            table.add_row(*first, f"{rate:g}", *(f"{losses[count]:.4f}" for count in counts), "")
        figures = [f"{result['best'][count]:.4f}" for count in counts]
        table.add_row(*first, "best", *figures, "yes" if result["met"] else "no")
    return table


def main() -> int:
    """Trains all, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outer_steps")
    parser.add_argument("--quick", action="store_true", help="one seed, a few steps, two islands")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problem", action="append", choices=[*SETTINGS, "none"], help="all by default")
    parser.add_argument("--rate", type=float, help="the only one to try")
    parser.add_argument("--kills", type=int, default=20, help="in one more run of 3 islands on the digits; 0 for none")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("more", nargs="*", help="arguments of the islands' program")
    options = parser.parse_args()
    seeds, counts = range(1 if options.quick else options.seeds), (0, *ISLANDS[: 1 if options.quick else None])
    problems = [problem for problem in options.problem or SETTINGS if problem != "none"]
    results = list[dict[str, Any]]()
    for problem in problems:
        settings = SETTINGS[problem]
        if options.quick:
            settings = replace(settings, steps=2 * EVERY, rates=settings.rates[:1], warm=0)
        if options.rate:
            settings = replace(settings, rates=(options.rate,))
        results.append(compared(problem, settings, counts, seeds, options.more))
    console = Console(width=110)
    if results:
        console.print(shown(results, counts))
    if options.kills and not options.quick:
        settings = replace(KILLED, steps=KILLED.steps + STEPS_A_KILL * options.kills)
        loss, wait = killed(settings, options.kills, 3, options.more)
        calm = loss_of("digits", settings, settings.rates[0], 0, 3, options.more)
        console.print(
            f"{options.kills} kills in {settings.steps} steps: loss {loss:.5f}, without {calm:.5f}; longest wait "
            f"{wait:.1f} s, beside {EVERY * PACE_S:g} s from one meeting to the next"
        )
        results.append({"kills": options.kills, "steps": settings.steps, "loss": loss, "calm": calm, "wait_s": wait})
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
