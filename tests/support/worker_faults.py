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


@jd.function
def own_argument(x: dict[str, Any]) -> Any:
    """A step of an array that each worker makes, under a name that makes another program."""

    def sums() -> Any:
        return replica_context().all_reduce("sum", next(iter(x.values())).sum())

    return strategy.reduce("SUM", strategy.run(sums), axis=None)


def rows() -> Iterator[Any]:
    for count in range(STEPS + 1):
        if BAD and count == STEP + 1 and CASE == "stall-input":
            forever()
        wide = CASE.startswith("uneven") and count % 2
        fewer = CASE == "batch" and BAD and count == STEP
        yield np.ones((1 if fewer else 2, 32 if wide else 4), np.float32)


class Rows:
    """All workers' batches, whose number is not known."""

    def __iter__(self) -> Iterator[Any]:
        return rows()


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
    if CASE == "own-shape":
        return own_argument, {"x": np.ones(5, np.float32)}
    if CASE == "own-name":
        return own_argument, {"y": np.ones(4, np.float32)}
    return {"swapped": swapped_step, "stall-inside": stuck_step, "missing": lambda _: 0.0}.get(CASE, step), x


def main() -> None:
    assert cluster is not None
    if CASE == "batch":
        data = iter(strategy.experimental_distribute_dataset(Rows()))
    else:
        data = iter(strategy.distribute_datasets_from_function(lambda _: rows()))
    for number in range(STEPS):
        if CASE.startswith("own"):
            call, x = wrong(None) if BAD and number == STEP else (own_argument, {"x": np.ones(4, np.float32)})
            assert float(call(x)) > 0
            continue
        if number == STEP and f"uneven-skip-{cluster.rank}" == CASE:
            next(data)
            continue
        if number == STEP and f"skip-{cluster.rank}" == CASE:
            continue
        bad = BAD and number == STEP
        call, x = wrong(next(data)) if bad else (step, next(data))
        if number == STEP and f"uneven-extra-{cluster.rank}" == CASE:
            call(x)
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
