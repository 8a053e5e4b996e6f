"""The digits step of one worker, recorded and not: a peer process for `harness`."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp

import jaxtribute as jd
from benchmarks.harness import serve
from benchmarks.peers.arguments import Step
from benchmarks.peers.jax_steps import by_jaxtribute
from benchmarks.problems import make
from jaxtribute._src import observed

PROBLEM, BATCH = "64-256-256-10", 256
_LOOKED_S = 5.0


def switched(step: Step, observers: list[observed.Observer]) -> Step:
    """The step under the eyes of some observers."""

    def run(count: int) -> tuple[float, float]:
        before = observed.observers[:]
        observed.observers[:] = observers
        try:
            return step(count)
        finally:
            observed.observers[:] = before

    return run


def noting(recorder: observed.Observer) -> Step:
    """Seconds that the thread that trains spends on telling of a step and of its input."""
    element = jnp.zeros((BATCH, 64))
    program = SimpleNamespace(donated=(), given=(0,))

    def run(count: int) -> tuple[float, float]:
        start = time.thread_time()
        for _ in range(count):
            recorder("input", "start", None)
            recorder("input", "end", element)
            recorder("step", "start", program)
            recorder("step", "end", (program, element))
        return (time.thread_time() - start) / count, 0.0

    return run


def looking(count: int) -> tuple[float, float]:
    """Share of a core that the thread that looks takes, while no step runs."""
    del count
    (thread,) = [one for one in threading.enumerate() if one.name == "jaxtribute-live"]
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    start = time.clock_gettime(clock)
    time.sleep(_LOOKED_S)
    return (time.clock_gettime(clock) - start) / _LOOKED_S, 0.0


def asking(count: int) -> tuple[float, float]:
    """Seconds of a step's questions whether anybody looks: what remains where nobody does."""
    observers: list[observed.Observer] = []
    start = time.perf_counter()
    for _ in range(count):
        if observers:
            raise AssertionError
        if observers:
            raise AssertionError
        if not observers:
            pass
    return (time.perf_counter() - start) / count, 0.0


def main() -> None:
    """Serves `off`, `on`, `noting`, `looking` and `asking`."""
    jd.config.set_logical_cpu_devices(1)
    strategy = jd.MultiWorkerMirroredStrategy()
    jd.config.record_run(Path(sys.argv[1]))
    (recorder,) = observed.observers
    problem = make(PROBLEM, BATCH)
    observers = {"off": list[observed.Observer](), "on": [recorder]}
    steps = {name: switched(by_jaxtribute("jaxtribute", problem, strategy), seen) for name, seen in observers.items()}
    steps["noting"] = noting(recorder)
    serve({**steps, "looking": looking, "asking": asking})


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
