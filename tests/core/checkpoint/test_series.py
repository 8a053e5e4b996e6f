"""The latest checkpoint is the one saved last, and only what its training has come through stands in for it."""

from __future__ import annotations

import json
import logging
import shutil
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute._src.core.checkpoint.series import Series
from jaxtribute._src.core.checkpoint.turns import TURN, Turn
from jaxtribute.errors import CheckpointDamagedError, CheckpointError


def manager_of(folder: Path, **options: Any) -> jd.CheckpointManager:
    return jd.CheckpointManager(jd.Checkpoint(v=0), folder, block=True, **options)


def save(manager: jd.CheckpointManager, value: int, number: int | None = None) -> Path:
    manager.checkpoint.v = value
    return Path(str(manager.save(number)))


def names(manager: jd.CheckpointManager) -> list[str]:
    return [Path(path).name for path in manager.checkpoints]


def spoil(path: Path, *files: str) -> None:
    for file in files or ("state/manifest.ocdbt",):
        (path / file).write_bytes(b"")


@pytest.fixture
def gone_back(tmp_path: Path) -> Path:
    """A training of five steps that has gone back to the second, and saved the third anew: of the value 30."""
    with manager_of(tmp_path / "run") as manager:
        for step in range(1, 6):
            save(manager, step)
        manager.checkpoint.restore(tmp_path / "run" / "ckpt-2")
        assert save(manager, 30).name == "ckpt-3"
        # As with TensorFlow.
        assert names(manager) == ["ckpt-1", "ckpt-2", "ckpt-4", "ckpt-5", "ckpt-3"]
        assert Path(str(manager.latest_checkpoint)).name == "ckpt-3"
    return tmp_path / "run"


def test_a_training_that_has_gone_back_goes_on_from_there(gone_back: Path) -> None:
    assert jd.latest_checkpoint(gone_back) == tf.train.latest_checkpoint(gone_back) == str(gone_back / "ckpt-3")
    with manager_of(gone_back, max_to_keep=3) as again:
        assert again.restore_or_initialize() == str(gone_back / "ckpt-3")
        assert again.checkpoint.v == 30
        assert save(again, 40).name == "ckpt-4"
        assert names(again) == ["ckpt-5", "ckpt-3", "ckpt-4"]
    # The names tell the order to nobody who copies the folder, its hidden files left out, and sets clocks.
    copy = gone_back.with_name("copy")
    shutil.copytree(gone_back, copy, ignore=shutil.ignore_patterns(".*"))
    assert jd.latest_checkpoint(copy) == str(copy / "ckpt-4")


@pytest.mark.parametrize("files", [("state/manifest.ocdbt",), ("jaxtribute.json",), ("turn.json",)])
def test_a_line_that_was_given_up_does_not_stand_in(
    files: tuple[str, ...], gone_back: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(gone_back / "ckpt-3", *files)
    with caplog.at_level(logging.WARNING):
        assert jd.latest_checkpoint(gone_back) == str(gone_back / "ckpt-2")
    assert "ckpt-3 is left out" in caplog.text
    with manager_of(gone_back) as again:
        assert again.restore_or_initialize() == str(gone_back / "ckpt-2")
        assert again.checkpoint.v == 2
    for number in (1, 2):
        spoil(gone_back / f"ckpt-{number}")
    manager = manager_of(gone_back, init_fn=lambda: pytest.fail("begun anew"))
    for action in (
        lambda: jd.latest_checkpoint(gone_back),
        lambda: tf.train.latest_checkpoint(gone_back),
        lambda: manager.latest_checkpoint,
        manager.restore_or_initialize,
    ):
        with pytest.raises(
            CheckpointDamagedError, match=r"come through is whole[\s\S]*others.*ckpt-5, .*ckpt-4\. HINT"
        ):
            action()
    # What one means is restored by its path, and is the latest from the next save on.
    manager.checkpoint.restore(gone_back / "ckpt-5")
    save(manager, 60)
    assert jd.latest_checkpoint(gone_back) == str(gone_back / "ckpt-6")
    spoil(gone_back / "ckpt-6")
    assert jd.latest_checkpoint(gone_back) == str(gone_back / "ckpt-5")
    manager.close()


def test_a_new_training_in_an_old_folder_is_not_pruned_for_the_old(tmp_path: Path) -> None:
    with manager_of(tmp_path, max_to_keep=3) as old:
        for number in (100, 200, 300):
            save(old, number, number)
    with manager_of(tmp_path, max_to_keep=3) as new:
        for number in range(1, 4):
            save(new, number)
            assert jd.latest_checkpoint(tmp_path) == str(tmp_path / f"ckpt-{number}")
        assert names(new) == ["ckpt-1", "ckpt-2", "ckpt-3"]
    with manager_of(tmp_path) as again:
        assert again.restore_or_initialize() == str(tmp_path / "ckpt-3")


def test_clocks_that_jump_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    with manager_of(tmp_path, max_to_keep=2, keep_checkpoint_every_n_hours=1) as manager:
        for step, hours in enumerate((0, 9, -9000, -8999.5, -8998), 1):
            monkeypatch.setattr(time, "time", lambda hours=hours: now + hours * 3600)
            save(manager, step)
            assert jd.latest_checkpoint(tmp_path) == str(tmp_path / f"ckpt-{step}")
        monkeypatch.setattr(time, "time", lambda: now - 8000 * 3600)
        save(manager, 6)
        # One for each span stays, also after the clock was set back by a year: 2 nine hours after the start.
        save(manager, 7)
        assert names(manager) == ["ckpt-2", "ckpt-5", "ckpt-6", "ckpt-7"]


def test_managers_of_one_checkpoint_with_names_of_their_own(tmp_path: Path) -> None:
    """The last and the best, say: what one saves is no line of its own for the other."""
    checkpoint = jd.Checkpoint(v=0)
    last = jd.CheckpointManager(checkpoint, tmp_path, block=True)
    best = jd.CheckpointManager(checkpoint, tmp_path, block=True, checkpoint_name="best")
    for value in range(1, 4):
        save(last, value, value)
        save(best, value, value)
    for name in ("ckpt", "best"):
        spoil(tmp_path / f"{name}-3")
        assert jd.latest_checkpoint(tmp_path, name) == str(tmp_path / f"{name}-2")
    last.close()
    best.close()


def test_an_interval_that_begins_before_the_training_went_back(tmp_path: Path) -> None:
    step = jd.Variable(0)
    checkpoint = jd.Checkpoint(step=step)
    options: dict[str, Any] = {"step_counter": step, "checkpoint_interval": 10, "block": True}
    with jd.CheckpointManager(checkpoint, tmp_path, **options) as manager:
        for number in (100, 500):
            step.assign(number)
            manager.save(number)
        checkpoint.restore(tmp_path / "ckpt-100")
        step.assign(111)
        assert manager.save(111)


def as_of_an_earlier_version(path: Path, written_at: float | None = None) -> None:
    """Makes a checkpoint what versions before turns have written."""
    (path / TURN).unlink()
    entries = json.loads((path / "jaxtribute.json").read_text())
    del entries["checksum"], entries["turn"], entries["files"][TURN]
    if written_at is not None:
        entries["written_at"] = written_at
    checksum = zlib.crc32(json.dumps(entries, sort_keys=True).encode())
    (path / "jaxtribute.json").write_text(json.dumps({"checksum": checksum, **entries}, indent=1) + "\n")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder of an earlier version, with the checkpoints 2, 9, 10."""
    with manager_of(tmp_path / "old") as manager:
        for at, number in enumerate((2, 9, 10)):
            as_of_an_earlier_version(save(manager, number, number), 1000.0 + at)
    return tmp_path / "old"


def test_a_folder_of_an_earlier_version(old: Path) -> None:
    assert jd.latest_checkpoint(old) == str(old / "ckpt-10")
    with manager_of(old, max_to_keep=3) as manager:
        assert names(manager) == ["ckpt-2", "ckpt-9", "ckpt-10"]
        assert manager.restore_or_initialize() == str(old / "ckpt-10")
        assert manager.checkpoint.v == 10
        save(manager, 3, 3)
        assert names(manager) == ["ckpt-9", "ckpt-10", "ckpt-3"]
    spoil(old / "ckpt-3")
    assert jd.latest_checkpoint(old) == str(old / "ckpt-10")
    spoil(old / "ckpt-10")
    assert jd.latest_checkpoint(old) == str(old / "ckpt-9")


def test_an_earlier_version_did_not_tell_what_came_after_a_checkpoint_that_was_gone_back_to(old: Path) -> None:
    with manager_of(old) as manager:
        manager.checkpoint.restore(old / "ckpt-9")
        save(manager, 4, 4)
    spoil(old / "ckpt-4")
    assert jd.latest_checkpoint(old) == str(old / "ckpt-9")


def test_what_an_earlier_version_left_ambiguous_is_refused(tmp_path: Path) -> None:
    with manager_of(tmp_path) as manager:
        for number, at in ((1, 1.0), (5, 2.0), (3, 3.0)):
            as_of_an_earlier_version(save(manager, number, number), at)
    manager = manager_of(tmp_path, init_fn=lambda: pytest.fail("begun anew"))
    for action in (
        lambda: jd.latest_checkpoint(tmp_path),
        lambda: manager.latest_checkpoint,
        manager.restore_or_initialize,
    ):
        with pytest.raises(
            CheckpointError, match=r"not known which .*ckpt-5 has the highest .*ckpt-3 the latest .*HINT"
        ):
            action()
    manager.checkpoint.restore(tmp_path / "ckpt-3")
    save(manager, 4)
    assert jd.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-1").replace(
        "ckpt-1", f"ckpt-{manager.checkpoint.save_counter}"
    )
    manager.close()


def test_one_that_tells_nothing_any_more(tmp_path: Path) -> None:
    """Both files that tell its turn are damaged: it counts as the last if its number is the highest."""
    with manager_of(tmp_path) as manager:
        for step in range(1, 5):
            save(manager, step)
    for number in (2, 4):
        spoil(tmp_path / f"ckpt-{number}", "jaxtribute.json", TURN)
    entries = Series(tmp_path, "ckpt").entries()
    assert [entry.number for entry in entries] == [2, 1, 3, 4]
    assert jd.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-3")


def test_a_turn_of_another_checkpoint_changes_nothing(tmp_path: Path) -> None:
    with manager_of(tmp_path) as manager:
        for step in range(1, 5):
            save(manager, step)
    for file in (TURN, "jaxtribute.json"):
        content = (tmp_path / "ckpt-4" / file).read_bytes()
        (tmp_path / "ckpt-4" / file).write_bytes((tmp_path / "ckpt-1" / file).read_bytes())
        assert [entry.number for entry in Series(tmp_path, "ckpt").entries()] == [1, 2, 3, 4]
        assert jd.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-3")
        (tmp_path / "ckpt-4" / file).write_bytes(content)


def test_a_sidecar_evaluates_what_was_saved_anew_under_an_old_name(gone_back: Path) -> None:
    checkpoint, seen = jd.Checkpoint(v=0), list[int]()
    manager = manager_of(gone_back)

    def evaluate() -> dict[str, float]:
        seen.append(checkpoint.v)
        manager.checkpoint.restore(gone_back / "ckpt-2")
        if len(seen) == 1:
            save(manager, 31)
        return {"v": checkpoint.v}

    jd.experimental.SidecarEvaluator(checkpoint, evaluate, gone_back, max_evaluations=2, timeout_s=60).start()
    assert seen == [30, 31]
    manager.close()


HISTORIES = st.lists(st.integers(0, 5), max_size=12)


@given(HISTORIES, st.integers(0, 8))
def test_lines_against_lists(sources: list[int], pruned: int) -> None:
    """Each save comes from an earlier one or, at 0, from none; its line is that of its source, and itself."""
    turns: list[Turn] = []
    lines: list[list[int]] = []
    for source in sources:
        before = None if not turns or source == 0 else min(source, len(turns)) - 1
        present = [turn.number for turn in turns][-max(1, pruned) :]
        turns.append(Turn.next(None if before is None else turns[before], present))
        lines.append([*([] if before is None else lines[before]), len(turns)])
        assert turns[-1].number == len(turns)
        for number in [*present, len(turns)]:
            other = turns[number - 1]
            assert turns[-1].came_through(other, 0) == (number in lines[-1])
        assert Turn.from_text(turns[-1].as_text()) == Turn.parse(turns[-1].entries()) == turns[-1]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", '{"checksum": 1}', '{"checksum": 1, "number": 2, "line": []}']
)
def test_what_is_no_turn(text: str) -> None:
    assert Turn.from_text(text) is None
