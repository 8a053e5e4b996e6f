"""Which checkpoints a folder holds, and which is the latest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute._src.core.checkpoint import description, retention
from jaxtribute.errors import ArgumentError, CheckpointError


def names(paths: list[str]) -> list[str]:
    return [Path(path).name for path in paths]


def test_the_newest_stay(tmp_path: Path) -> None:
    value = jd.Variable(0)
    with jd.CheckpointManager(jd.Checkpoint(v=value), tmp_path / "folder", max_to_keep=2) as checkpoints:
        assert checkpoints.latest_checkpoint is None
        assert checkpoints.checkpoints == []
        for step in range(4):
            value.assign(step)
            path = checkpoints.save()
            assert path == str(tmp_path / "folder" / f"ckpt-{step + 1}")
    assert names(checkpoints.checkpoints) == ["ckpt-3", "ckpt-4"]
    assert jd.latest_checkpoint(tmp_path / "folder") == checkpoints.latest_checkpoint
    assert sorted(one.name for one in (tmp_path / "folder").iterdir()) == ["ckpt-3", "ckpt-4"]
    assert checkpoints.directory == str(tmp_path / "folder")
    value.assign(0)
    again = jd.CheckpointManager(jd.Checkpoint(v=value), tmp_path / "folder", max_to_keep=2, block=True)
    assert again.restore_or_initialize() == checkpoints.latest_checkpoint
    assert int(value) == 3
    assert again.save() == str(tmp_path / "folder" / "ckpt-5")
    assert names(again.checkpoints) == ["ckpt-4", "ckpt-5"]


def test_the_latest_is_what_save_returned_though_it_is_written_in_the_background(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    link.symlink_to(folder)
    checkpoint = jd.Checkpoint(v=jd.Variable(np.zeros(300_000, np.float32)))
    for where in (folder, link):
        path = checkpoint.save(folder / "ckpt")
        found = jd.latest_checkpoint(where)
        assert found is not None
        assert Path(found).samefile(path)
    with jd.CheckpointManager(checkpoint, folder) as manager:
        assert manager.save() == manager.latest_checkpoint
        assert manager.save() == tf.train.latest_checkpoint(folder)


@pytest.mark.parametrize("names", [["ck"], ["my-model"], ["a", "b"], ["b", "a"]])
def test_the_latest_of_a_folder_whatever_it_is_called(tmp_path: Path, names: list[str]) -> None:
    value = jd.Variable(0.0)
    checkpoint = jd.Checkpoint(v=value)
    (tmp_path / "other-7").mkdir()
    (tmp_path / "notes-9").write_text("no checkpoint")
    assert jd.latest_checkpoint(tmp_path) is None
    for number, name in enumerate(names):
        value.assign(number)
        path = checkpoint.save(tmp_path / name)  # in the background
        assert jd.latest_checkpoint(tmp_path) == tf.train.latest_checkpoint(tmp_path) == path
        assert jd.latest_checkpoint(tmp_path, "ckpt") is None
    checkpoint.restore(jd.latest_checkpoint(tmp_path))
    assert float(value) == len(names) - 1
    # That of the name which managers give comes first, so that no clock is asked.
    usual = checkpoint.save(tmp_path / "ckpt", block=True)
    checkpoint.save(tmp_path / names[0], block=True)
    assert jd.latest_checkpoint(tmp_path) == usual


def test_numbers_and_names_of_ones_own(tmp_path: Path) -> None:
    value = jd.Variable(0)
    checkpoints = jd.CheckpointManager(
        jd.Checkpoint(v=value), tmp_path, max_to_keep=None, checkpoint_name="m", block=True
    )
    for number in (100, 20, jd.Variable(3)):
        checkpoints.save(checkpoint_number=number)
    (tmp_path / "m-7").mkdir()
    (tmp_path / "m-200.orbax-checkpoint-tmp").mkdir()  # of a save that was killed
    (tmp_path / "other-300").mkdir()
    assert names(checkpoints.checkpoints) == ["m-100", "m-20", "m-3"]
    checkpoints.save(checkpoint_number=4)
    assert not (tmp_path / "m-200.orbax-checkpoint-tmp").exists()
    assert names(checkpoints.checkpoints) == ["m-100", "m-20", "m-3", "m-4"]
    assert jd.latest_checkpoint(tmp_path, "ckpt") is None
    assert jd.latest_checkpoint(tmp_path) == jd.latest_checkpoint(tmp_path, "m") == str(tmp_path / "m-4")
    assert jd.latest_checkpoint(tmp_path / "nowhere") is None


@pytest.mark.parametrize("manager", [jd.CheckpointManager, tf.train.CheckpointManager])
@pytest.mark.parametrize("restarted", [False, True])
def test_counting_passes_over_numbers_that_were_asked_for(manager: Any, restarted: bool, tmp_path: Path) -> None:
    """Each save counts, and none takes the place of another: what it was asked to save is there in the end."""
    value = jd.Variable(0)

    def made() -> Any:
        return manager(jd.Checkpoint(v=value), tmp_path, max_to_keep=None, block=True)

    checkpoints = made()
    saved: dict[str, int] = {}
    for step, number in enumerate([1, None, 5, 3, None, None, None, 20, None]):
        value.assign(step)
        path = checkpoints.save(checkpoint_number=number)
        assert path not in saved, f"{path} was that of step {saved[path]}"
        saved[path] = step
        if restarted:
            checkpoints.close()
            checkpoints = made()
            assert checkpoints.restore_or_initialize() == path
    assert checkpoints.checkpoint.save_counter >= len(saved)
    for path, step in saved.items():
        jd.Checkpoint(v=value).restore(path)
        assert int(value) == step


def test_saves_with_numbers_count(tmp_path: Path) -> None:
    checkpoint = jd.Checkpoint(v=jd.Variable(0))
    with jd.CheckpointManager(checkpoint, tmp_path) as checkpoints:
        for number in range(0, 10, 2):
            checkpoints.save(checkpoint_number=number)
    assert checkpoint.save_counter == 5


def test_checkpoints_of_another_name_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    value = jd.Variable(3)
    other = jd.Checkpoint(v=value).save(tmp_path / "ck", block=True)
    value.assign(0)
    checkpoints = jd.CheckpointManager(jd.Checkpoint(v=value), tmp_path, init_fn=lambda: value.assign(7), block=True)
    assert checkpoints.latest_checkpoint is None
    assert checkpoints.restore_or_initialize() is None
    assert int(value) == 7
    assert f"begins anew beside {other}" in caplog.text
    assert "HINT" in caplog.text
    checkpoints.save()
    caplog.clear()
    assert checkpoints.restore_or_initialize() == str(tmp_path / "ckpt-1")
    assert not caplog.text


def test_a_damaged_checkpoint_of_another_name_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    value = jd.Variable(3)
    other = jd.Checkpoint(v=value).save(tmp_path / "ck", block=True)
    (Path(other) / "jaxtribute.json").write_text("")
    assert jd.CheckpointManager(jd.Checkpoint(v=value), tmp_path).restore_or_initialize() is None
    assert f"begins anew beside {other}" in caplog.text


def test_tensorflows_manager_goes_on_from_a_checkpoint_of_another_name(tmp_path: Path) -> None:
    value = jd.Variable(3)
    checkpoint = tf.train.Checkpoint(v=value)
    paths = [checkpoint.save(tmp_path / "ck") for _ in range(2)]
    value.assign(0)
    checkpoints = tf.train.CheckpointManager(tf.train.Checkpoint(v=value), tmp_path, max_to_keep=1)
    assert checkpoints.latest_checkpoint == paths[1]
    assert checkpoints.restore_or_initialize() == paths[1]
    assert int(value) == 3
    assert [Path(checkpoints.save() or "").name for _ in range(2)] == ["ckpt-3", "ckpt-4"]
    assert names(checkpoints.checkpoints) == ["ckpt-4"]
    assert all(Path(path).is_dir() for path in paths)  # not its own
    assert checkpoints.restore_or_initialize() == str(tmp_path / "ckpt-4")


@pytest.mark.parametrize("manager", [jd.CheckpointManager, tf.train.CheckpointManager])
def test_an_interval_counts_from_the_last_checkpoint_that_is_named(manager: Any, tmp_path: Path) -> None:
    step = jd.Variable(11)
    checkpoints = manager(
        jd.Checkpoint(step=step), tmp_path, 3, step_counter=step, checkpoint_interval=4, last_checkpoint_step=10
    )
    assert checkpoints.save() is None
    step.assign(14)
    assert checkpoints.save() is not None
    with pytest.raises(ArgumentError, match=r"last_checkpoint_step.*-1"):
        manager(jd.Checkpoint(step=step), tmp_path, 3, last_checkpoint_step=-1)


def test_a_save_only_every_so_many_steps(tmp_path: Path) -> None:
    step = jd.Variable(0, name="step")
    options: dict[str, Any] = {"step_counter": step, "checkpoint_interval": 10, "block": True}
    checkpoints = jd.CheckpointManager(jd.Checkpoint(step=step), tmp_path, **options)
    assert checkpoints.checkpoint_interval == 10
    saved: list[int] = []
    for number in range(0, 25, 4):
        step.assign(number)
        if checkpoints.save():
            saved.append(number)
    assert saved == [0, 12, 24]
    step.assign(25)
    assert checkpoints.save(check_interval=False)
    options["step_counter"] = lambda: int(step)
    again = jd.CheckpointManager(jd.Checkpoint(step=step), tmp_path, **options)
    again.restore_or_initialize()
    step.assign(30)
    assert again.save() is None


def test_one_for_each_span_of_time_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    for module in (description, retention):
        monkeypatch.setattr(module.time, "time", lambda: clock[0])

    def make() -> jd.CheckpointManager:
        checkpoint = jd.Checkpoint(v=jd.Variable(0))
        return jd.CheckpointManager(checkpoint, tmp_path, 1, keep_checkpoint_every_n_hours=1, block=True)

    checkpoints = make()
    for number in range(1, 9):
        clock[0] = number * 1500.0
        checkpoints.save(checkpoint_number=number)
    # 4500 s is the first that is an hour from the start, 9000 s the next.
    assert names(checkpoints.checkpoints) == ["ckpt-3", "ckpt-6", "ckpt-8"]
    again = make()
    for number in range(9, 12):
        clock[0] = number * 1500.0
        again.save(checkpoint_number=number)
    assert names(again.checkpoints) == ["ckpt-3", "ckpt-6", "ckpt-9", "ckpt-11"]


@pytest.mark.parametrize("content", ["", "[[1", '[["x", 2]]', "{}7", "3"])
def test_where_it_is_not_known_which_ones_stay_all_of_them_do(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    value = jd.Variable(0)

    def make() -> jd.CheckpointManager:
        return jd.CheckpointManager(jd.Checkpoint(v=value), tmp_path, 1, keep_checkpoint_every_n_hours=1e-9, block=True)

    checkpoints = make()
    for number in (1, 2, 3):
        checkpoints.save(number)
    (tmp_path / ".ckpt.kept.json").write_text(content)
    again = make()
    for number in (4, 5):
        again.save(number)
    assert "All checkpoints that are there stay: [1, 2, 3]" in caplog.text
    assert names(again.checkpoints) == [f"ckpt-{number}" for number in (1, 2, 3, 4, 5)]
    last = jd.CheckpointManager(jd.Checkpoint(v=value), tmp_path, 1, block=True)
    last.save(6)  # what stays is known again
    assert names(last.checkpoints)[:3] == ["ckpt-1", "ckpt-2", "ckpt-3"]


def test_the_first_start(tmp_path: Path) -> None:
    value = jd.Variable(0)
    checkpoints = jd.CheckpointManager(
        jd.Checkpoint(v=value), tmp_path / "new", init_fn=lambda: value.assign(5), checkpoint_name="a"
    )
    assert checkpoints.restore_or_initialize() is None
    assert int(value) == 5
    assert checkpoints.checkpoint.v is value
    checkpoints.close()


def test_an_error_in_the_background_comes_out_of_the_manager(tmp_path: Path) -> None:
    checkpoints = jd.CheckpointManager(jd.Checkpoint(v=jd.Variable(0)), tmp_path / "file" / "folder")
    (tmp_path / "file").write_text("")
    checkpoints.save()
    with pytest.raises(CheckpointError, match="was not saved"):
        checkpoints.wait()
    checkpoints.sync()


def test_a_restore_waits_for_the_save_before_it_and_raises_its_error(tmp_path: Path) -> None:
    checkpoint = jd.Checkpoint(v=jd.Variable(0))
    path = checkpoint.write(tmp_path / "whole", block=True)
    (tmp_path / "file").write_text("")
    checkpoint.write(tmp_path / "file" / "folder" / "ckpt")
    with pytest.raises(CheckpointError, match="was not saved"):
        checkpoint.restore(path)
    assert not checkpoint.restore(path).differences


@pytest.mark.parametrize(
    "options",
    [
        {"max_to_keep": 0},
        {"keep_checkpoint_every_n_hours": -1.0},
        {"checkpoint_interval": 0, "step_counter": 1},
        {"checkpoint_interval": 3},
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="HINT"):
        jd.CheckpointManager(jd.Checkpoint(), tmp_path, **options)
