"""Checkpoints of two workers with two devices each, and of one process, restored under each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoint_workers
import jaxtribute as jd
from checkpoint_programs import advance, assert_same, build
from jaxtribute.testing.shared import SharedRunners


def test_two_workers_and_one_process_restore_each_others_checkpoints(
    multi_process: SharedRunners, tmp_path: Path
) -> None:
    workers = multi_process(workers=2, devices=2)
    here: dict[str, Any] = {
        "one": lambda: jd.OneDeviceStrategy("cpu:0"),
        "mirrored": lambda: jd.MirroredStrategy([f"cpu:{i}" for i in range(4)]),
    }
    rests: list[float] = []
    state: dict[str, Any] = {}
    for name, strategy in here.items():
        program = build(strategy())
        advance(program)
        program.checkpoint.write(tmp_path / name, block=True)
        state, rests = program.state(), program.rest()
        assert len(rests) == 12
    saved = workers.run(checkpoint_workers.save, (str(tmp_path / "workers"),))
    for one in saved:
        assert_same(one["state"], state)
    assert sorted([*saved[0]["rest"], *saved[1]["rest"]]) == sorted(rests)

    paths = [str(tmp_path / name) for name in ("one", "mirrored", "workers")]
    for rank, found in enumerate(workers.run(checkpoint_workers.restore, (paths,))):
        for one in found:
            assert_same(one["state"], state)
            assert one["rest"] == saved[rank]["rest"]
    for strategy in here.values():
        program = build(strategy())
        program.checkpoint.read(tmp_path / "workers")
        assert_same(program.state(), state)
        assert program.rest() == rests


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
