"""The digits step of one worker, recorded and not: a peer process for `harness`."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp

import jaxtribute as jd
from benchmarks.harness import serve
from benchmarks.peers.arguments import Step
from benchmarks.peers.jax_steps import by_jaxtribute
from benchmarks.problems import make
from jaxtribute._src.core.observers import DISPATCH, INPUT, KINDS, Kind, Observer, observed

PROBLEM, BATCH = "64-256-256-10", 256


def unseen(step: Step, recorder: Observer) -> Step:
    """The step while a recorder does not observe."""

    def run(count: int) -> tuple[float, float]:
        before = {kind: kind.observers for kind in KINDS.values()}
        for kind, observers in before.items():
            kind.observers = tuple(one for one in observers if one is not recorder)
        try:
            return step(count)
        finally:
            for kind, observers in before.items():
                kind.observers = observers

    return run


def by_cpu(step: Step) -> Step:
    """The step, whose time is that of all of the process's cores."""

    def run(count: int) -> tuple[float, float]:
        start = time.process_time()
        _, loss = step(count)
        return (time.process_time() - start) / count, loss

    return run


def noting(recorder: Observer) -> Step:
    """Seconds that the thread that trains spends on telling of a step and of its input."""
    element = jnp.zeros((BATCH, 64))
    program = SimpleNamespace(donated=(), donated_leaves=(0,))
    dispatch, data = Kind(DISPATCH.name), Kind(INPUT.name)
    dispatch.observers = data.observers = (recorder,)

    def give() -> jax.Array:
        return element

    def run(count: int) -> tuple[float, float]:
        start = time.thread_time()
        for _ in range(count):
            data.around(give, None, "")
            dispatch.around(give, program, "step")
        return (time.thread_time() - start) / count, 0.0

    return run


def looking(step: Step) -> Step:
    """Share of a core that the thread that looks takes, while a step runs."""

    def run(count: int) -> tuple[float, float]:
        (thread,) = [one for one in threading.enumerate() if one.name == "jaxtribute-live"]
        assert thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)
        start, began = time.clock_gettime(clock), time.monotonic()
        step(count)
        return (time.clock_gettime(clock) - start) / (time.monotonic() - began), 0.0

    return run


def asking(count: int) -> tuple[float, float]:
    """Seconds of a step's questions whether anybody looks: what remains where nobody does."""
    kind = Kind(DISPATCH.name)
    call = observed(Kind(INPUT.name))(_nothing)
    start = time.thread_time()
    for _ in range(count):
        if kind.observers and kind.due():
            raise AssertionError
        call(None)
    return (time.thread_time() - start) / count, 0.0


def _nothing(subject: None) -> None:
    """A method that is an event where somebody observes."""
    del subject


def main() -> None:
    """Serves `off` and `on`, by the clock and by the cores, `noting`, `looking` and `asking`."""
    jd.config.set_logical_cpu_devices(1)
    strategy = jd.MultiWorkerMirroredStrategy()
    jd.config.record_run(Path(sys.argv[1]))
    (recorder,) = DISPATCH.observers
    problem = make(PROBLEM, BATCH)
    off, on = (by_jaxtribute("jaxtribute", problem, strategy) for _ in range(2))
    steps = {"off": unseen(off, recorder), "on": on}
    for name in ("off", "on"):
        steps[f"{name}, cores"] = by_cpu(steps[name])
    steps["noting"] = noting(recorder)
    serve({**steps, "looking": looking(on), "asking": asking})


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
