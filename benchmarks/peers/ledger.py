"""The digits step of one worker with the collective ledger off and on: a peer process for `harness`."""

from __future__ import annotations

import os
import time

import jaxtribute as jd
from benchmarks.harness import serve
from benchmarks.peers.arguments import Step
from benchmarks.peers.jax_steps import by_jaxtribute
from benchmarks.problems import make
from jaxtribute._src.core.cluster import ledger

PROBLEM, BATCH = "64-256-256-10", 256


def switched(step: Step, on: bool) -> Step:
    """The step with the ledger on or off; checks that the workers compare each step, or none."""

    def run(count: int) -> tuple[float, float]:
        compared = 0
        compare = ledger.compare

        def counted(*arguments: object) -> None:
            nonlocal compared
            compared += 1
            compare(*arguments)  # pyright: ignore[reportArgumentType]

        jd.config.debug_collectives(on)
        ledger.compare = counted
        try:
            found = step(count)
        finally:
            ledger.compare = compare
            jd.config.debug_collectives(False)
        assert compared == (count if on else 0), f"{compared} comparisons in {count} steps"
        return found

    return run


def asking(count: int) -> tuple[float, float]:
    """What a step pays where the ledger is off: it asks whether it is on."""
    enabled = ledger.enabled
    start = time.perf_counter()
    for _ in range(count):
        enabled()
    return (time.perf_counter() - start) / count, 0.0


def main() -> None:
    """Serves `off`, `on` and `asking`."""
    jd.config.set_logical_cpu_devices(1)
    strategy = jd.MultiWorkerMirroredStrategy()
    problem = make(PROBLEM, BATCH)
    steps = {name: switched(by_jaxtribute("jaxtribute", problem, strategy), name == "on") for name in ("off", "on")}
    serve({**steps, "asking": asking})


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
