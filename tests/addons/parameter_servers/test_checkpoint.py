"""Checkpoints of variables on servers, under any strategy, and the evaluator that watches them."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
import tensorboardX as tensorboardX  # before a test: it sets an environment variable

import jaxtribute as jd
from jaxtribute.errors import DeadlineError
from jaxtribute.partitioners import FixedShardsPartitioner
from parameter_servers.clusters import float32, threads

TABLE = np.arange(10, dtype=np.float32).reshape(5, 2)


def model(strategy: Any, value: np.ndarray) -> tuple[jd.Variable, jd.Optimizer]:
    with strategy.scope():
        table = jd.Variable(value, name="table")
        return table, jd.Optimizer(optax.sgd(0.1, momentum=0.5), [table])


def test_a_split_variable_and_its_slots_are_saved_as_one(tmp_path: Path) -> None:
    with threads(servers=2, partitioner=FixedShardsPartitioner(3)) as strategy:
        table, optimizer = model(strategy, TABLE)
        optimizer.apply_gradients([np.ones_like(TABLE)])
        saved = jd.Checkpoint(table=table, optimizer=optimizer).save(tmp_path / "ckpt", block=True)
        other, slots = model(jd.OneDeviceStrategy("cpu:0"), np.zeros_like(TABLE))
        jd.Checkpoint(table=other, optimizer=slots).restore(saved).assert_consumed()
        np.testing.assert_allclose(other.numpy(), TABLE - 0.1, rtol=1e-6)
        np.testing.assert_allclose(slots.variables[0].numpy(), 1)
        optimizer.apply_gradients([np.ones_like(TABLE)])
        jd.Checkpoint(table=table, optimizer=optimizer).restore(saved).assert_consumed()
        np.testing.assert_allclose(table.numpy(), TABLE - 0.1, rtol=1e-6)
        np.testing.assert_allclose(optimizer.variables[0].numpy(), 1)


def test_the_evaluator_evaluates_what_comes(tmp_path: Path) -> None:
    trained, mine = jd.Variable(float32(0), name="v"), jd.Variable(np.float32(-1), name="v")
    saving = jd.CheckpointManager(jd.Checkpoint(v=trained), tmp_path / "saved", max_to_keep=5)
    evaluator = jd.experimental.SidecarEvaluator(
        jd.Checkpoint(v=mine), lambda: {"double": mine * float32(2)}, tmp_path / "saved",
        log_dir=tmp_path / "logs", max_evaluations=2, poll_s=0.01, timeout_s=30,
    )  # fmt: skip
    trained.assign(1)
    saving.save()
    saving.wait()
    thread = threading.Thread(target=evaluator.start)
    thread.start()
    while not evaluator.results and thread.is_alive():
        thread.join(0.01)
    trained.assign(2)
    saving.save()
    saving.wait()
    thread.join(30)
    saving.close()
    assert [result["double"] for result in evaluator.results] == [2, 4]
    assert list((tmp_path / "logs").iterdir())


def test_the_evaluator_ends(tmp_path: Path) -> None:
    checkpoint = jd.Checkpoint(v=jd.Variable(1.0))
    evaluator = jd.experimental.SidecarEvaluator(checkpoint, dict, tmp_path, poll_s=0.01, timeout_s=0.05)
    with pytest.raises(DeadlineError, match="no checkpoint has come in"):
        evaluator.start()
    patient = jd.experimental.SidecarEvaluator(checkpoint, dict, tmp_path, poll_s=60)
    threading.Timer(0.05, patient.stop).start()
    assert patient.start() == {}
