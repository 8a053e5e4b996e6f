"""The cost of a run's records: of the digits step of four workers, and of its parts, which are less noisy."""

from __future__ import annotations

import os
import statistics
import tempfile

from benchmarks.comparison import Comparison, Row
from benchmarks.harness import Group, alternate

BAR = 0.005
"""Share of a step."""
OFF_BAR_S = 1e-6
WORKERS = 4


def suite(quick: bool) -> list[Comparison]:
    """The digits step of 4 workers, recorded against not recorded."""
    with tempfile.TemporaryDirectory() as directory:
        group = Group(WORKERS, "benchmarks.peers.live", [directory])
        try:
            contenders = [(group, name, name) for name in ("off", "on")]
            off, on = alternate(contenders, steps=32 if quick else 128, rounds=3 if quick else 31)
            by_cores = [(group, name, f"{name}, cores") for name in ("off", "on")]
            cores_off, cores_on = alternate(by_cores, steps=32 if quick else 128, rounds=3 if quick else 31)
            noted = group.steps("noting", 1_000 if quick else 20_000)[0]
            looked = group.steps("looking", 200 if quick else 2_000)[0]
            asked = group.steps("asking", 10_000)[0]
        finally:
            group.close()
    more_cores = [a - b for a, b in zip(cores_on.seconds, cores_off.seconds, strict=True)]
    cores = statistics.median(more_cores)
    more = [a - b for a, b in zip(on.seconds, off.seconds, strict=True)]
    cost = statistics.median(more)
    # The workers' looking threads share the cores with all of their steps.
    share = looked * max(1.0, WORKERS / (os.cpu_count() or 1))
    parts = noted / off.median + share
    rows = [
        Row("not recorded", off.median, min(off.seconds), max(off.seconds), loss=off.loss),
        Row("recorded", on.median, min(on.seconds), max(on.seconds), loss=on.loss),
        Row("the difference", cost, min(more), max(more), ratio=cost / off.median / BAR, bar=1.0),
        Row("not recorded, seconds of cores", cores_off.median, min(cores_off.seconds), max(cores_off.seconds)),
        Row("recorded, seconds of cores", cores_on.median, min(cores_on.seconds), max(cores_on.seconds)),
        Row("the difference", cores, min(more_cores), max(more_cores), ratio=cores / cores_off.median / BAR, bar=1.0),
        Row("noted by the step's thread", noted, noted, noted, ratio=noted / off.median / BAR, bar=1.0),
        Row("looked, seconds of a core per second", looked, looked, looked, ratio=share / BAR, bar=1.0),
        Row("both", parts * off.median, parts * off.median, parts * off.median, ratio=parts / BAR, bar=1.0),
        Row("when off", asked, asked, asked, ratio=asked / OFF_BAR_S, bar=1.0),
    ]
    note = f"ratios are to the bars: {BAR:.1%} of a step when on, {OFF_BAR_S * 1e6:g} us when off"
    return [Comparison(f"64-256-256-10, batch 256, {WORKERS} processes", rows, [note])]
