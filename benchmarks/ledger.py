"""What the collective ledger costs a step of two workers, on and off."""

from __future__ import annotations

import statistics

from benchmarks.comparison import Comparison, Row
from benchmarks.harness import Group, alternate

BAR_S = 5e-3
OFF_BAR_S = 1e-6
"""A step's question whether it is on: what remains where it is off."""


def suite(quick: bool) -> list[Comparison]:
    """The digits step of 2 workers with the collective ledger on against off."""
    group = Group(2, "benchmarks.peers.ledger", [])
    try:
        contenders = [(group, name, name) for name in ("off", "on")]
        off, on = alternate(contenders, steps=16 if quick else 48, rounds=3 if quick else 31)
        asked = [group.steps("asking", 10_000)[0] for _ in range(3 if quick else 11)]
    finally:
        group.close()
    more = [a - b for a, b in zip(on.seconds, off.seconds, strict=True)]
    cost, asking = statistics.median(more), statistics.median(asked)
    rows = [
        Row("ledger off", off.median, min(off.seconds), max(off.seconds), loss=off.loss),
        Row("ledger on", on.median, min(on.seconds), max(on.seconds), loss=on.loss),
        Row("its cost", cost, min(more), max(more), ratio=cost / BAR_S, bar=1.0),
        Row("its cost when off", asking, min(asked), max(asked), ratio=asking / OFF_BAR_S, bar=1.0),
    ]
    note = f"ratios are to the bars: {BAR_S * 1e3:g} ms a step when on, {OFF_BAR_S * 1e6:g} us when off"
    return [Comparison("64-256-256-10, batch 256, 2 processes", rows, [note])]
