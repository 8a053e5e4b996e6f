"""What the workers of a cluster do in the tests of checkpoints; `worker_programs` has their strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
import worker_programs
from checkpoint_programs import Program, advance, build
from jaxtribute._src.core import reading
from jaxtribute._src.core.checkpoint.description import Description
from read_faults import FOLDERS, Disk


def _program() -> Program:
    return build(worker_programs.strategy())


def save(path: str) -> dict[str, Any]:
    """Saves a state to `path` and returns it, with what each iterator still gives to this worker."""
    program = _program()
    advance(program)
    program.checkpoint.write(path, block=True)
    return {"state": program.state(), "rest": program.rest()}


def restore(paths: list[str]) -> list[dict[str, Any]]:
    """Restores each checkpoint; returns the states, each with the rows that are still to come."""
    found: list[dict[str, Any]] = []
    for path in paths:
        program = _program()
        program.checkpoint.read(path)
        found.append({"state": program.state(), "rest": program.rest()})
    return found


def copied() -> dict[str, Any]:
    """What a save has of a variable that a step has written meanwhile: its parts of this worker, and where they lie."""
    strategy = worker_programs.strategy()
    with strategy.scope():
        value = jd.Variable(np.arange(40_000, dtype=np.float32), aggregation=jd.VariableAggregation.SUM)
    lease, array = value.lease(), value.stored

    @jd.function
    def step() -> None:
        strategy.run(lambda: value.assign_add(jnp.ones(40_000)))

    step()
    saved = lease.take()
    found = {
        "donated": array.is_deleted(),
        "same place": saved.sharding == array.sharding,
        "parts": [np.array(shard.data) for shard in saved.addressable_shards],  # the copy goes with the lease
    }
    del saved
    lease.give_back()
    return found


def manage(directory: str) -> dict[str, Any]:
    """A manager's life: saves in the background, beside steps; an error; the latest."""
    strategy = worker_programs.strategy()
    with strategy.scope():
        value = jd.Variable(0.0, aggregation=jd.VariableAggregation.SUM)
    checkpoints = jd.CheckpointManager(jd.Checkpoint(v=value), directory, max_to_keep=2)
    first = checkpoints.restore_or_initialize()

    @jd.function
    def step() -> None:
        strategy.run(lambda: value.assign_add(jnp.float32(1)))

    for _ in range(3):
        step()
        checkpoints.save()
    checkpoints.wait()
    value.assign(0.0)
    latest = checkpoints.restore_or_initialize()
    kept = [path.rpartition("/")[2] for path in checkpoints.checkpoints]
    checkpoints.close()
    broken = jd.Checkpoint(v=value)
    text = ""
    try:
        broken.write("/dev/null/here" if worker_programs.rank() == 0 else f"{directory}/x", block=True)
    except jd.errors.CheckpointError as error:
        text = str(error)
    return {"first": first, "latest": latest, "value": float(value), "kept": kept, "error": text}


def fall_back(directory: str, damaged: str) -> dict[str, Any]:
    """Restores what is whole where `ckpt-2` is damaged on the way to one worker's part of the files."""
    strategy = worker_programs.strategy()
    with strategy.scope():
        value = jd.Variable(np.zeros(1_100_000, np.float32), aggregation=jd.VariableAggregation.SUM)
    checkpoint = jd.Checkpoint(v=value)
    with jd.CheckpointManager(checkpoint, directory, block=True) as checkpoints:
        for number in (1, 2):
            value.assign(np.full(1_100_000, number, np.float32))
            checkpoints.save()
        kept = Description.read(Path(directory) / "ckpt-2").files
        if worker_programs.rank() == 0:
            path = Path(directory) / "ckpt-2" / next(name for name in sorted(kept) if damaged in name)
            path.write_bytes(path.read_bytes()[::-1])
        # Each worker checks a part of the files, and none may have done so before the damage.
        float(strategy.reduce("SUM", strategy.run(lambda: jnp.float32(1)), axis=None))
        value.assign(np.full(1_100_000, 7, np.float32))
        text = ""
        try:
            checkpoint.restore(f"{directory}/ckpt-2")
        except jd.errors.CheckpointDamagedError as error:
            text = str(error)
        before = float(value.numpy().max())
        path = checkpoints.restore_or_initialize()
        return {"error": text, "before": before, "path": path, "value": value.numpy(), "files": list(kept)}


def cannot_read(directory: str, bad: int) -> list[dict[str, Any]]:
    """Restores in two ways where one worker cannot read a part of the folder, and again once it can."""
    strategy = worker_programs.strategy()
    with strategy.scope():
        value = jd.Variable(0.0, aggregation=jd.VariableAggregation.SUM)
    checkpoint, found = jd.Checkpoint(v=value), list[dict[str, Any]]()
    with jd.CheckpointManager(checkpoint, directory, block=True) as manager:
        for number in (10.0, 20.0, 30.0):
            value.assign(number)
            manager.save()
        for names in FOLDERS:
            value.assign(7.0)
            one: dict[str, Any] = {"names": names, "errors": [], "hit": False}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(reading, "_PAUSES_S", (0.001,))
                disk = Disk(patch, "EIO", names, float("inf")) if worker_programs.rank() == bad else None
                for restore in (lambda: checkpoint.restore(f"{directory}/ckpt-3"), manager.restore_or_initialize):
                    try:
                        restore()
                    except jd.errors.CheckpointError as error:
                        one["errors"].append((type(error).__name__, str(error)))
            one["hit"] = disk is not None and bool(disk.failed)
            found.append(one | {"before": float(value), "path": manager.restore_or_initialize(), "after": float(value)})
    return found
