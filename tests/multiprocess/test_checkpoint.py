"""Checkpoints of two workers with two devices each, and of one process, restored under each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoint_workers
import jaxtribute as jd
from checkpoint_programs import advance, assert_same, build
from jaxtribute._src.addons.testing.shared import SharedRunners

pytestmark = pytest.mark.slow

ALONE: dict[str, Callable[[], Any]] = {
    "one device": lambda: jd.OneDeviceStrategy("cpu:0"),
    "mirrored 2": lambda: jd.MirroredStrategy(["cpu:0", "cpu:1"]),
    "mirrored 4": lambda: jd.MirroredStrategy([f"cpu:{i}" for i in range(4)]),
}
WORKERS = "2 workers x 2"


def test_workers_and_one_process_restore_each_others_checkpoints(multi_process: SharedRunners, tmp_path: Path) -> None:
    # Those of one process restore each other's in tests/core/checkpoint/test_checkpoint.py.
    workers = multi_process(workers=2, devices=2)
    saved = workers.run(checkpoint_workers.save, (str(tmp_path / WORKERS),))
    state, rests = saved[0]["state"], sorted([*saved[0]["rest"], *saved[1]["rest"]])
    assert len(rests) == 12
    rest: list[float] = []
    for name, strategy in ALONE.items():
        program = build(strategy())
        advance(program)
        program.checkpoint.write(tmp_path / name, block=True)
        assert_same(program.state(), state)
        rest = program.rest()
        assert sorted(rest) == rests, name

    paths = [str(tmp_path / name) for name in (*ALONE, WORKERS)]
    for rank, found in enumerate(workers.run(checkpoint_workers.restore, (paths,))):
        for one in found:
            assert_same(one["state"], state)
            assert one["rest"] == saved[rank]["rest"]
    for strategy in ALONE.values():
        program = build(strategy())
        program.checkpoint.read(tmp_path / WORKERS)
        assert_same(program.state(), state)
        assert program.rest() == rest


def test_a_step_leaves_a_save_a_copy_of_this_workers_parts(multi_process: SharedRunners) -> None:
    workers = multi_process(workers=2, devices=2)
    for found in workers.run(checkpoint_workers.copied):
        assert found["donated"]
        assert found["same place"]
        assert len(found["parts"]) == 2
        for part in found["parts"]:
            np.testing.assert_array_equal(part, np.arange(40_000, dtype=np.float32))


def test_a_manager_on_two_workers(multi_process: SharedRunners, tmp_path: Path) -> None:
    workers = multi_process(workers=2, devices=2)
    for found in workers.run(checkpoint_workers.manage, (str(tmp_path),)):
        assert found["first"] is None
        assert found["latest"] == str(tmp_path / "ckpt-3")
        assert found["value"] == 12.0
        assert found["kept"] == ["ckpt-2", "ckpt-3"]
        assert "worker 0" in found["error"]
        assert "NotADirectoryError" in found["error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-2", "ckpt-3"]


@pytest.mark.parametrize("damaged", ["ocdbt.process_0/d/", "ocdbt.process_1/d/"])
def test_all_workers_fall_back_together(damaged: str, multi_process: SharedRunners, tmp_path: Path) -> None:
    workers = multi_process(workers=2, devices=2)
    for found in workers.run(checkpoint_workers.fall_back, (str(tmp_path), damaged)):
        assert "other bytes than were written" in found["error"]
        assert any(damaged in name for name in found["files"])
        assert found["before"] == 7
        assert found["path"] == str(tmp_path / "ckpt-1")
        np.testing.assert_array_equal(found["value"], np.ones(1_100_000, np.float32))


@pytest.mark.parametrize("bad", [0, 1])
def test_what_one_worker_cannot_read_is_told_to_all(bad: int, multi_process: SharedRunners, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    ranks = multi_process(workers=2, devices=2).run(checkpoint_workers.cannot_read, (folder, bad), timeout_s=60)
    for one, other in zip(*ranks, strict=True):
        kinds = [kind for kind, _ in one["errors"]]
        assert kinds == [kind for kind, _ in other["errors"]], (one, other)
        # Which files Python reads, and not TensorStore, depends on which was written last.
        assert kinds == (2 * ["CheckpointUnreadableError"] if one["hit"] or other["hit"] else []), one
        for _, text in one["errors"] + other["errors"]:
            assert "/run" in text, text
            assert f"worker {bad}" in text or "was not restored" not in text, text
            assert "cannot be read now" in text, text
            assert "HINT" in text, text
        for rank in (one, other):
            assert rank["before"] == (7 if kinds else 30), rank
            assert (rank["path"], rank["after"]) == (f"{folder}/ckpt-3", 30), rank
