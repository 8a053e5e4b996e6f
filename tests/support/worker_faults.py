"""A program of two workers in which worker 1 does something wrong in step 3. Argument: the case."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxtribute as jd
from jaxtribute._src.core.cluster import runtime

CASE, STEP, STEPS = sys.argv[1], 3, 40

strategy = jd.MultiWorkerMirroredStrategy()
cluster = runtime.Cluster.current()
assert cluster is not None
BAD = cluster.rank == 1


def going_wrong() -> None:
    """Leaves a file with the time, for whoever measures how long the others go on."""
    if "JAXTRIBUTE_FAULT_MARKER" in os.environ:
        Path(os.environ["JAXTRIBUTE_FAULT_MARKER"]).touch()


def forever() -> None:
    """Holds this worker up; the name is looked for in the message."""
    going_wrong()
    while True:
        time.sleep(0.05)


def replica_context() -> jd.ReplicaContext:
    context = jd.get_replica_context()
    assert context is not None
    return context


def add(x: Any) -> Any:
    first = replica_context().all_reduce("sum", x)  # the first sum
    second = replica_context().all_reduce("mean", x[:2])  # the second sum
    return first.sum() + second.sum()


def swapped(x: Any) -> Any:
    second = replica_context().all_reduce("mean", x[:2])  # the second sum, too early
    first = replica_context().all_reduce("sum", x)
    return first.sum() + second.sum()


def stuck(x: Any) -> Any:
    """As `add`, on the device held up between its sums."""
    first = replica_context().all_reduce("sum", x)
    held = jax.pure_callback(lambda _: forever(), jax.ShapeDtypeStruct((), jnp.float32), first)
    second = replica_context().all_reduce("mean", x[:2] + held)
    return first.sum() + second.sum()


@jd.function
def step(x: Any) -> Any:
    return strategy.reduce("SUM", strategy.run(add, (x,)), axis=None)


@jd.function
def swapped_step(x: Any) -> Any:
    return strategy.reduce("SUM", strategy.run(swapped, (x,)), axis=None)


@jd.function
def stuck_step(x: Any) -> Any:
    return strategy.reduce("SUM", strategy.run(stuck, (x,)), axis=None)


swapped_step.__name__ = step.__name__


def rows() -> Iterator[Any]:
    for count in range(STEPS + 1):
        if BAD and count == STEP + 1 and CASE == "stall-input":
            forever()
        yield np.ones((2, 4), np.float32)


def wrong(x: Any) -> tuple[Callable[[Any], Any], Any]:
    """What the bad worker does in its bad step: the step that it runs, and on what."""
    if not CASE.startswith("stall"):
        going_wrong()
    if CASE == "raise":
        raise ValueError("the fault of worker 1")
    if CASE == "stall-before":
        forever()
    if CASE == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if CASE == "shape":
        x = strategy.experimental_distribute_values_from_function(lambda _: np.ones((2, 5), np.float32))
    if CASE == "extra":
        step(x)
    return {"swapped": swapped_step, "stall-inside": stuck_step, "missing": lambda _: 0.0}.get(CASE, step), x


def main() -> None:
    assert cluster is not None
    data = iter(strategy.distribute_datasets_from_function(lambda _: rows()))
    for number in range(STEPS):
        if number == STEP and f"skip-{cluster.rank}" == CASE:
            continue
        bad = BAD and number == STEP
        call, x = wrong(next(data)) if bad else (step, next(data))
        value = float(call(x))
        assert value == value
        if bad and CASE == "stall-after":
            forever()
    if BAD and CASE == "stall-save":
        forever()
    if CASE == "stall-save":
        cluster.barrier("save", timeout_s=3)


if __name__ == "__main__":
    main()
