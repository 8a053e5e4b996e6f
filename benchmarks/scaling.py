"""How the library's own cost a step grows: with variables, replicas, the size of arguments, and workers.

The compiled programs are replaced by functions that answer at once, so that the library alone is measured; on several
workers, where that cannot be, the difference to hand-written JAX in the same processes. What no machine here can show,
4,096 devices, is shown as `jaxtribute plan` sees it.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.comparison import Comparison, Row
from benchmarks.harness import DEADLINE_S, ROOT, TRAINING_SCRIPT, Group, Peer

SIZES = {
    "own variables": (1, 10, 100, 1000, 10_000),
    "own width": (1, 10, 100, 1000, 10_000),
    "own depth": (1, 10, 100, 500),
}
REPLICAS = (1, 4, 16, 64, 256)
WORKERS = (1, 2, 4, 8)
ORDER_BAR = 1.1
"""The exponent of a power law that is no worse than linear, with room for noise."""


PLANNED = ("--weak", "--hosts", "512", "--devices", "8", "--device-kind", "h200", "--link", "infiniband-ndr")
"""A cluster of 4,096 devices, each with a batch of its own."""


def order(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent of `seconds = a + b * size ** exponent`: the slope of the logarithms, `a` taken at the
    first sizes.

    Only the upper half of the sizes is fitted: the order is about what dominates in the end.
    """
    base = min(seconds[:2]) if len(sizes) > 2 else 0.0  # the first may be noisy
    points = [(size, taken - base) for size, taken in zip(sizes, seconds, strict=True) if taken > 1.2 * base]
    points = points[-3:]
    if len(points) < 2:
        return 0.0  # it does not grow
    logs = [(math.log(size), math.log(taken)) for size, taken in points]
    mean_x, mean_y = (statistics.mean(column) for column in zip(*logs, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def _curve(title: str, sizes: Sequence[int], taken: Sequence[Sequence[float]]) -> Comparison:
    """A row a size, and the fitted order as the last one's ratio."""
    middles = [statistics.median(one) for one in taken]
    rows = [Row(f"{size}", middle, min(one), max(one)) for size, middle, one in zip(sizes, middles, taken, strict=True)]
    exponent = order(sizes, middles)
    rows[-1].ratio, rows[-1].bar = exponent, ORDER_BAR
    return Comparison(title, rows, [_growth(exponent, "cost", "size")])


def _growth(exponent: float, what: str, by: str) -> str:
    """The order in words."""
    if abs(exponent) < 0.005:
        return f"{what} does not grow with {by}"
    return f"order {exponent:.2f}: {what} grows as {by} ** {exponent:.2f}"


def _turns(peer: Peer, name: str, steps: int, rounds: int) -> list[float]:
    """Seconds a step, by rounds."""
    peer.steps(name, 3)
    return [peer.steps(name, steps)[0] for _ in range(rounds)]


def suite(quick: bool) -> list[Comparison]:
    """The library's own cost a step by variables, replicas, nests, workers; 4,096 devices as planned; with orders."""
    rounds = 3 if quick else 15
    found: list[Comparison] = []
    peer = Peer("benchmarks.peers.host_cost", [])
    try:
        for kind, sizes in SIZES.items():
            sizes = sizes[:3] if quick else sizes
            taken = [_turns(peer, f"{kind} {size}", max(300, 3000 // size), rounds) for size in sizes]
            title = f"library's own cost by {kind.split()[1]}"
            if kind != "own variables":  # what stands in for a program flattens no arguments
                title += ", without JAX's flattening of the argument"
            found.append(_curve(title, sizes, taken))
    finally:
        peer.close()
    taken = []
    replicas = REPLICAS[:3] if quick else REPLICAS
    for count in replicas:
        peer = Peer("benchmarks.peers.host_cost", [str(count)])
        try:
            taken.append(_turns(peer, f"own replicas {count}", 300, rounds))
        finally:
            peer.close()
    found.append(_curve("library's own cost by replicas", replicas, taken))
    found.append(_by_workers(WORKERS[:2] if quick else WORKERS, rounds))
    found.append(as_planned("transformer", 64))
    return found


def as_planned(problem: str, batch: int) -> Comparison:
    """A step on 1 to 4,096 devices as `jaxtribute plan` predicts it, each with a batch of its own."""
    script = [str(TRAINING_SCRIPT), problem, str(batch)]
    command = [sys.executable, "-m", "jaxtribute.cli", "plan", "--json", *PLANNED, *script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    curve: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["curve"]
    title = f"a step as planned, {problem}, batch {batch} on each h200, by devices"
    found = _curve(title, [one["devices"] for one in curve], [[one["step"]] for one in curve])
    last = curve[-1]
    found.notes.append(
        f"{last['devices']:,} devices: {last['collectives'] / last['step']:.0%} of a step is exchange, "
        f"{last['efficiency']:.0%} of the rate of as many devices alone"
    )
    return found


def _by_workers(counts: Sequence[int], rounds: int) -> Comparison:
    """What a step of the library takes longer than one by hand in the same processes."""
    arguments = ["--problem", "4-4", "--batch", "8", "--contender", "jaxtribute", "--contender", "shard-map-packed"]
    rows: list[Row] = []
    for count in counts:
        module = "benchmarks.peers.jax_steps"
        peer = Group(count, module, arguments) if count > 1 else Peer(module, arguments)
        try:
            peer.steps("jaxtribute", 16)
            peer.steps("shard-map-packed", 16)
            pairs = [(peer.steps("jaxtribute", 32)[0], peer.steps("shard-map-packed", 32)[0]) for _ in range(rounds)]
        finally:
            peer.close()
        ratio = statistics.median(a / b for a, b in pairs)
        over = [a - b for a, b in pairs]
        rows.append(Row(f"{count}", statistics.median(over), min(over), max(over), ratio=ratio))
    exponent = order(counts, [max(row.median, 1e-9) for row in rows])
    note = _growth(exponent, "the difference", "workers")
    return Comparison("a step's cost over hand-written JAX by workers; ratio to it", rows, [note])
