"""What it takes until the first step is done, in processes that start from nothing; and what an import takes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from benchmarks.comparison import Comparison, Row
from benchmarks.harness import DEADLINE_S, ROOT, inherited, median_ratio

IMPORT_BAR_S = 0.03
_IMPORT = "import time, jax; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def _output(command: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        env={**inherited(), "JAX_PLATFORMS": "cpu"},
    )
    return done.stdout.splitlines()[-1]


def suite(quick: bool) -> list[Comparison]:
    """Start to the end of the first step, digits MLP on 4 devices; import of jaxtribute over import of jax."""
    rounds = 2 if quick else 11
    kinds = ("jaxtribute", "shard-map by hand, Optax imported")
    whole: dict[str, list[float]] = {kind: [] for kind in kinds}
    losses: dict[str, float] = {}
    notes: list[str] = []
    for turn in range(rounds + 1):
        for kind in kinds:
            start = time.perf_counter()
            told = json.loads(_output(["-m", "benchmarks.peers.first_step", kind, "4", "64-256-256-10"]))
            if turn:  # the first one writes byte code and fills the file cache
                whole[kind].append(time.perf_counter() - start)
            losses[kind] = told["loss"]
            if turn == rounds:
                marks = ", ".join(f"{name} {at:.2f} s" for name, at in told["marks"].items())
                notes.append(f"{kind}, last round: {marks}")
    first, second = (whole[kind] for kind in kinds)
    assert abs(losses[kinds[0]] - losses[kinds[1]]) < 1e-5, losses
    against = median_ratio(first, second)
    rows = [_row(kinds[0], first), _row(kinds[1], second, against, 1.2)]
    imports = [float(_output(["-c", _IMPORT.format("jaxtribute")])) for _ in range(rounds + 1)][1:]
    modules = [float(_output(["-c", _IMPORT.format("optax")])) for _ in range(rounds + 1)][1:]
    middle = statistics.median(imports)
    imported = [
        _row("jaxtribute", imports),
        Row("the bar", IMPORT_BAR_S, IMPORT_BAR_S, IMPORT_BAR_S, ratio=middle / IMPORT_BAR_S, bar=1.0),
        _row("optax, for comparison", modules),
    ]
    return [
        Comparison("start to first step, 64-256-256-10, 4 devices", rows, notes),
        Comparison("import, once jax is imported", imported),
        *(_first_step(problem, 2 if quick else 7) for problem in ("64-256-256-10", "transformer-12")),
    ]


def _first_step(problem: str, rounds: int) -> Comparison:
    """Seconds of processors in the first step, tracing and compiling included, on one device."""
    taken: dict[str, list[float]] = {"jaxtribute": [], "by hand": []}
    losses: list[float] = []
    for _ in range(rounds):
        for kind, seconds in taken.items():
            told = json.loads(_output(["-m", "benchmarks.peers.first_step", kind, "1", problem]))
            assert told["traces"] == 1, f"{kind} has traced the loss {told['traces']} times"
            seconds.append(told["busy"])
            losses.append(told["loss"])
    assert max(losses) - min(losses) < 1e-5 * max(losses), losses
    first, second = taken.values()
    against = median_ratio(first, second)
    rows = [_row("jaxtribute", first, against, 1.1), _row("by hand", second)]
    return Comparison(f"first step alone, {problem}, 1 device, seconds of processors", rows)


def _row(name: str, seconds: list[float], ratio: float | None = None, bar: float | None = None) -> Row:
    return Row(name, statistics.median(seconds), min(seconds), max(seconds), ratio=ratio, bar=bar)
