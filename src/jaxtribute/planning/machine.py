"""Measuring the machine at hand: a step's computing without exchange, and bare collectives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxtribute.errors import ArgumentError, DeadlineError, ProcessFailedError
from jaxtribute.planning.inspection import Step
from jaxtribute.values.mesh import own

DEADLINE_S = 300.0
_ROUNDS, _LEAST_S, _AT_MOST = 7, 0.1, 200
_WAIT_EVERY = 8
_TOGETHER = 32
"""Calls of a round where several processes must make equally many."""
_POOL = ("PJRT_NPROC", "JAXTRIBUTE_PJRT_NPROC")


def run_module(module: str, arguments: Sequence[str], devices: int, workers: int = 1) -> dict[str, Any]:
    """Runs a module in a process with so many CPU devices, where there is no accelerator, and returns what it answers.

    Args:
      module: its last line of output is the answer, in JSON.
      arguments: what follows its name.
      devices: devices of each process.
      workers: processes that form a cluster; the first one's answer counts.

    Raises:
      DeadlineError: it does not end in 300 s.
      ProcessFailedError: it fails.
    """
    environment = os.environ | {"JAXTRIBUTE_CPU_DEVICES": str(devices)}
    for name in ("TF_CONFIG", *_POOL):
        environment.pop(name, None)
    launcher = ["jaxtribute.cli", "launch", "--workers", str(workers), "-m"] if workers > 1 else []
    command = [sys.executable, "-m", *launcher, module, *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise DeadlineError(
            f"{module} on {devices} devices has not ended in {DEADLINE_S:.0f} s. HINT: plan a smaller step."
        ) from None
    if done.returncode:
        raise ProcessFailedError(
            f"{module} on {devices} devices ended with {done.returncode}. HINT: run the script by itself first. It "
            f"printed:\n{done.stdout}{done.stderr}"
        )
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines()]  # the launcher's mark of rank 0
    return json.loads([line for line in lines if line.startswith("{")][-1])


def timed(call: Callable[[], Any], wait_every: int = _WAIT_EVERY) -> float:
    """Seconds of a call that returns arrays, some in flight: those of the fastest round, which least disturbed."""

    def run(count: int) -> float:
        start = time.perf_counter()
        result = None
        for index in range(count):
            result = call()
            if index % wait_every == wait_every - 1:
                jax.block_until_ready(result)
        jax.block_until_ready(result)
        return (time.perf_counter() - start) / count

    run(2)
    count = min(max(int(_LEAST_S / max(run(2), 1e-7)), 2), _AT_MOST)
    if jax.process_count() > 1:
        count = _TOGETHER
    return min(run(count) for _ in range(_ROUNDS))


def time_alone(step: Step, rows: int, devices: int) -> float:
    """Seconds in which each of `devices` devices computes a step of one replica, all at once, without any exchange.

    Args:
      step: a step on one device.
      rows: examples on each device.
      devices: how many devices.

    Raises:
      ArgumentError: the step has several replicas.
    """
    if step.replicas != 1:
        raise ArgumentError(
            f"the script makes {step.replicas} replicas where it was offered one device. HINT: let its strategy "
            "take the devices that there are: MirroredStrategy() without a list."
        )
    step.lower(step.batch)  # the trace that is at hand, of the batch's own size, would serve any size once
    program = jax.jit(step.program.jitted.__wrapped__, donate_argnums=0)
    places = jax.devices()[:devices]
    shapes = step.resized(rows)
    leaves = [
        leaf if shape is leaf else np.resize(leaf, shape.shape) for leaf, shape in zip(step.leaves, shapes, strict=True)
    ]
    kept = [variable.stored for variable in step.program.kept]
    states = [own_all([variable.stored for variable in step.program.donated], place) for place in places]
    others = [own_all([*kept, *leaves], place) for place in places]

    def call() -> Any:
        for place in range(devices):
            rest = others[place]
            states[place], _ = program(states[place], rest[: len(kept)], rest[len(kept) :])
        return states

    # Replicas that share cores end at different times, and each step of a training waits for the last one.
    shared = places[0].platform == "cpu" and devices > _cores()
    return timed(call, 1 if shared else _WAIT_EVERY)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_all(arrays: Sequence[Any], place: Any) -> list[jax.Array]:
    """Copies of arrays on a device."""
    return [own(array, place) for array in arrays]


def time_collectives(wanted: Sequence[tuple[str, Sequence[int]]], devices: int) -> float:
    """Seconds of a program on `devices` devices that makes these collectives and does nothing else."""
    mesh = jax.make_mesh(
        (devices,), ("replica",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices]
    )
    split = jax.P("replica")
    sizes = [max(nbytes // 4, 1) for _, parts in wanted for nbytes in parts]
    arrays = [jax.device_put(np.ones(size * devices, np.float32), jax.NamedSharding(mesh, split)) for size in sizes]

    def local(*values: Any) -> Any:
        rest = list(values)
        results: list[Any] = []
        for kind, parts in wanted:
            mine, rest = rest[: len(parts)], rest[len(parts) :]
            results += _exchanged(kind, mine)
        return results

    # Whole results, so that nothing of them can be left out.
    program = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=split, out_specs=split, check_vma=False))
    return timed(lambda: program(*arrays))


def _exchanged(kind: str, values: list[Any]) -> list[Any]:
    """One collective of several arrays. Rare kinds cost at most what an all-reduce of as many bytes does."""
    size = jax.lax.axis_size("replica")
    if kind == "reduce-scatter" and all(value.size >= size for value in values):
        return [jax.lax.psum_scatter(value[: value.size // size * size], "replica", tiled=True) for value in values]
    if kind == "collective-permute":
        pairs = [(place, (place + 1) % size) for place in range(size)]
        return [jax.lax.ppermute(value, "replica", pairs) for value in values]
    if kind == "all-gather":
        return [jax.lax.all_gather(value[: max(value.size // size, 1)], "replica", tiled=True) for value in values]
    return list(jax.lax.psum(tuple(values), "replica"))
