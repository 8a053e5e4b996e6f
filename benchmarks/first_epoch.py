"""First epoch of Keras's `fit`, with a partial last batch, on four devices: what compiling costs a user.

Batches of 16 and a last one of 5, of six kinds of models. Each measurement is a process of its own, and counts the
seconds of processors that `fit` takes: plain Keras compiles a program for each of both sizes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from benchmarks.comparison import Comparison, Row
from benchmarks.harness import DEADLINE_S, ROOT, inherited, median_ratio

KINDS = ("mlp", "conv", "transformer-6", "transformer-12", "recurrent", "u-net")
BAR = 1.25
CONTENDERS = ("jaxtribute, 4 devices", "keras")


def measured(contender: str, kind: str) -> dict[str, float]:
    """Seconds of processors, and the loss, of a first epoch in a new process."""
    command = [sys.executable, "-m", "benchmarks.peers.first_epoch", contender.partition(",")[0], kind]
    done = subprocess.run(
        command,
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        env={**inherited(), "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"},
    )
    return json.loads(done.stdout.splitlines()[-1])


def suite(quick: bool) -> list[Comparison]:
    """First epoch of Keras's `fit` with a partial last batch, 4 devices, seconds of processors."""
    return [_compared(kind, 1 if quick else 5) for kind in (KINDS[:1] if quick else KINDS)]


def _compared(kind: str, rounds: int) -> Comparison:
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    losses: dict[str, float] = {}
    for _ in range(rounds):
        for name in CONTENDERS:
            told = measured(name, kind)
            seconds[name].append(told["busy"])
            losses[name] = told["loss"]
    ours, plain = (losses[name] for name in CONTENDERS)
    assert abs(ours - plain) < 1e-5 * abs(plain), losses
    first, second = (seconds[name] for name in CONTENDERS)
    rows = [
        Row(CONTENDERS[0], statistics.median(first), min(first), max(first)),
        Row(
            CONTENDERS[1],
            statistics.median(second),
            min(second),
            max(second),
            ratio=median_ratio(first, second),
            bar=BAR,
        ),
    ]
    return Comparison(f"first epoch, {kind}, batches of 16 and 5, seconds of processors", rows)
