"""What a call of a `jd.function` costs on the host over a bare `jax.jit` call with the same state.

The difference of the two is lost in their noise where there are many variables. So the library alone is measured too,
with a program that answers at once.
"""

from __future__ import annotations

import statistics

from benchmarks.comparison import Comparison, Row
from benchmarks.harness import Peer, median_ratio

BARS_US = {10: 15.0, 1000: 60.0}
RATIO_BAR = 1.1
"""Of a whole small step, with 4 and with 100 variables, against the same by hand."""


def suite(quick: bool) -> list[Comparison]:
    """Host-side cost of a jd.function call over bare jax.jit, with 10 and 1,000 variables."""
    rounds = 3 if quick else 41
    found: list[Comparison] = []
    peer = Peer("benchmarks.peers.host_cost", [])
    try:
        for count, bar in BARS_US.items():
            steps = 20 if quick else 4000 // count
            names = f"call {count}", f"jit {count}"
            taken: dict[str, list[float]] = {name: [] for name in names}
            for turn in range(rounds + 2):
                for name in names:
                    seconds, _ = peer.steps(name, steps)
                    if turn > 1:
                        taken[name].append(seconds)
            calls, jits = (taken[name] for name in names)
            over = [a - b for a, b in zip(calls, jits, strict=True)]
            middle = statistics.median(over)
            own = [peer.steps(f"own variables {count}", steps)[0] for _ in range(rounds + 1)][1:]
            alone = statistics.median(own)
            rows = [
                Row("jd.function", statistics.median(calls), min(calls), max(calls)),
                Row("jax.jit", statistics.median(jits), min(jits), max(jits)),
                Row("difference", middle, min(over), max(over)),
                Row("the library alone", alone, min(own), max(own), ratio=alone * 1e6 / bar, bar=1.0),
            ]
            found.append(Comparison(f"a call with {count} variables (bar of the difference: {bar:g} us)", rows))
        found += [_small_step(peer, count, rounds, quick=quick) for count in (4, 100)]
    finally:
        peer.close()
    return found


def _small_step(peer: Peer, count: int, rounds: int, *, quick: bool) -> Comparison:
    """A step that adds a number to each of `count` variables, in short blocks that take turns."""
    steps = 20 if quick else 8000 // count
    taken: dict[str, list[float]] = {f"call {count}": [], f"jit {count}": []}
    for turn in range(rounds + 2):
        for name, seconds in taken.items():
            one, _ = peer.steps(name, steps)
            if turn > 1:
                seconds.append(one)
    calls, jits = taken.values()
    ratio = median_ratio(calls, jits)
    rows = [
        Row("jd.function", statistics.median(calls), min(calls), max(calls), ratio=ratio, bar=RATIO_BAR),
        Row("jax.jit", statistics.median(jits), min(jits), max(jits)),
    ]
    return Comparison(f"a small step with {count} variables", rows)
