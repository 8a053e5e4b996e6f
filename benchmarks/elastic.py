"""Islands that may die: what their step costs, and how soon the others finish the next one after a kill."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.comparison import Comparison, Contender, Row, compare
from benchmarks.harness import ROOT, inherited
from benchmarks.peers.jax_steps import ELASTIC
from benchmarks.suites import DIGITS, LARGE

PROGRAM = ROOT / "tests" / "support" / "elastic_program.py"
STEP_BAR, RECOVERY_BAR_S = 1.10, 1.0
ISLANDS = 4
DEADLINE_S = 120.0
STEPS = 100_000
"""More than are taken: the job ends with its last island."""
SETTLED = 20
"""Steps after a change until the next kill: all programs for so many islands have been compiled by then."""


def steps(quick: bool, counts: Sequence[int] = (2, 4)) -> list[Comparison]:
    """The step of islands against that of as many workers, who send factors of gradients where these are smaller."""
    found: list[Comparison] = []
    for problem, batch, count in ((DIGITS, 256, 48), (LARGE, 128, 8), ("transformer", 16, 8)):
        arguments = ["--problem", problem, "--batch", str(batch), "--devices", "1"]
        contenders = [Contender(ELASTIC), Contender("jaxtribute", bar=STEP_BAR)]
        for workers in counts:
            name = f"{problem}, batch {batch}, {workers} islands against {workers} workers"
            rounds, each = (2, 4) if quick else (11, count)
            found.append(compare(name, arguments, contenders, steps=each, rounds=rounds, workers=workers))
    return found


def told(folder: Path, island: int) -> list[tuple[int, float, int]]:
    """Process, moment and view of each step that an island has finished."""
    file = folder / f"island-{island}"
    lines = file.read_text().splitlines() if file.exists() else []
    whole = [line.split() for line in lines if line.count(" ") == 3]
    return [(int(pid), float(moment), int(view)) for pid, _, moment, view in whole]


def until(condition: Callable[[], bool], output: Path) -> None:
    """Waits for a condition.

    Raises:
      RuntimeError: it does not come.
    """
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited in vain for {DEADLINE_S:g} s; the job has said:\n{output.read_text()}")
        time.sleep(0.002)


def kills(count: int, chance: random.Random) -> list[float]:
    """Seconds from each of `count` kills in one job to the next step that the others have finished."""
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output, alive = folder / "output", list(range(ISLANDS))
        command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--elastic", "--workers", str(ISLANDS)]
        with output.open("wb") as file:
            job = subprocess.Popen(
                [*command, "--devices-per-worker", "1", str(PROGRAM), name, str(STEPS)],
                cwd=ROOT,
                env=inherited(),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            for view in range(count):
                for island in alive:

                    def settled(island: int = island, view: int = view) -> bool:
                        return sum(each >= view for _, _, each in told(folder, island)) >= SETTLED

                    until(settled, output)
                time.sleep(chance.random() * 0.1)
                killed = alive.pop(chance.randrange(len(alive)))
                moment = time.time()
                os.kill(told(folder, killed)[-1][0], signal.SIGKILL)

                def next_ones(view: int = view) -> list[float]:
                    return [at for island in alive for _, at, each in told(folder, island) if each > view]

                until(lambda: bool(next_ones()), output)
                seconds.append(min(next_ones()) - moment)
        finally:
            job.kill()  # the islands end with it
            job.wait()
    return seconds


def recovery(quick: bool) -> Comparison:
    """From a kill to the next finished step."""
    chance, seconds = random.Random(0), list[float]()
    for _ in range(1 if quick else 4):
        seconds += kills(1 if quick else ISLANDS - 1, chance)
    median = statistics.median(seconds)
    row = Row("kill to next step", median, min(seconds), max(seconds), ratio=median / RECOVERY_BAR_S, bar=1.0)
    note = f"{len(seconds)} kills; the ratio is to the bar of {RECOVERY_BAR_S:g} s in the median"
    return Comparison(f"SIGKILL of one of {ISLANDS} islands, and of one of those that are left", [row], [note])


def suite(quick: bool) -> list[Comparison]:
    """Islands: their step against that of workers, on 2 and 4 processes, and from a kill to the next step."""
    return [*steps(quick), recovery(quick)]
