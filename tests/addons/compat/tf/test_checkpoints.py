"""`tf.train.Checkpoint` and its manager: TensorFlow's arguments, its defaults, and what its guides do with them."""

from pathlib import Path

import numpy as np
import pytest

import compat.checkpoint_workers as programs
import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute._src.addons.testing.shared import SharedRunners
from jaxtribute.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError


class Model(tf.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = tf.Variable(value, name="weight")


def test_is_saved_when_it_returns_and_restores_what_both_have(tmp_path: Path) -> None:
    saved = tf.train.Checkpoint(model=Model(3.0), step=tf.Variable(7), gone=tf.Variable(0.0))
    path = saved.save(tmp_path / "ckpt", options=tf.train.CheckpointOptions(enable_async=True))
    assert not saved.saving
    assert Path(path, "jaxtribute.json").exists()
    model, new = Model(0.0), tf.Variable(5.0)
    fresh = tf.train.Checkpoint(model=model, new=new)
    status = fresh.restore(path)
    assert (float(model.weight), float(new), fresh.save_counter) == (3.0, 5.0, 1)
    with pytest.raises(CheckpointMismatchError, match="gone"):
        status.assert_consumed()


def test_root_and_the_calls_that_do_not_count(tmp_path: Path) -> None:
    path = tf.train.Checkpoint(Model(2.0)).write(tmp_path / "one", None)
    model = Model(0.0)
    checkpoint = tf.train.Checkpoint(root=model)
    checkpoint.read(path, None).expect_partial()
    assert (float(model.weight), checkpoint.save_counter) == (2.0, 0)


def test_restoring_nothing_changes_nothing() -> None:
    model = Model(2.0)
    tf.train.Checkpoint(model=model).restore(None)
    assert float(model.weight) == 2.0


def test_the_latest_is_the_one_saved_last_whatever_its_name(tmp_path: Path) -> None:
    assert tf.train.latest_checkpoint(tmp_path / "none") is None
    step = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(step=step)
    paths = [checkpoint.save(tmp_path / name) for name in ("b", "a", "tf-1")]
    (tmp_path / "unfinished-9").mkdir()
    assert tf.train.latest_checkpoint(tmp_path) == paths[-1]
    assert tf.train.latest_checkpoint(str(tmp_path), "checkpoint") == paths[-1]


def test_a_damaged_one_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = tf.train.Checkpoint(step=tf.Variable(0))
    paths = [checkpoint.save(tmp_path / name) for name in ("b", "a", "c")]
    (Path(paths[2]) / "jaxtribute.json").unlink()
    (Path(paths[1]) / "state" / "manifest.ocdbt").write_bytes(b"")
    assert tf.train.latest_checkpoint(tmp_path) == paths[0]
    assert "a-2 is left out" in caplog.text
    assert "c-3 is left out" in caplog.text
    (Path(paths[0]) / "jaxtribute.json").write_text("")
    with pytest.raises(CheckpointDamagedError, match="none of the 3 checkpoints"):
        tf.train.latest_checkpoint(tmp_path)


def test_the_manager_keeps_as_many_as_it_is_told(tmp_path: Path) -> None:
    with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = Model(1.0)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), tmp_path, 2, checkpoint_name="m")
    for value in (1.0, 2.0, 3.0):
        model.weight.assign(value)
        path = manager.save(options=tf.train.CheckpointOptions())
        assert path is not None
        assert Path(path).exists()
    assert [Path(path).name for path in manager.checkpoints] == ["m-2", "m-3"]
    model.weight.assign(0.0)
    assert manager.restore_or_initialize() == manager.latest_checkpoint == tf.train.latest_checkpoint(tmp_path)
    np.testing.assert_array_equal(model.weight.numpy(), 3.0)


@pytest.mark.slow
def test_workers_that_save_to_folders_of_their_own_write_one_checkpoint(
    multi_process: SharedRunners, tmp_path: Path
) -> None:
    found = multi_process(workers=2, devices=2).run(programs.save_as_the_guide_does, (str(tmp_path),))
    for own, value in found:
        assert own == str(tmp_path / "ckpt" / "ckpt-2")
        assert value == 3.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt", "workertemp_1"]
    assert list((tmp_path / "workertemp_1").iterdir()) == []


@pytest.mark.parametrize("call", ["restore", "read"])
@pytest.mark.parametrize("name", ["none", "below/none-1"])
def test_a_path_with_nothing_there_is_tensorflows_not_found(tmp_path: Path, call: str, name: str) -> None:
    model = Model(2.0)
    checkpoint = tf.train.Checkpoint(model=model)
    for error in (tf.errors.NotFoundError, tf.errors.OpError, CheckpointError, FileNotFoundError):
        with pytest.raises(error, match=r"(?s)no such folder.*HINT"):
            getattr(checkpoint, call)(str(tmp_path / name))
    assert float(model.weight) == 2.0


def test_a_damaged_checkpoint_is_there(tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint(step=tf.Variable(0))
    path = Path(checkpoint.save(tmp_path / "ckpt"))
    (path / "jaxtribute.json").write_text("{")
    with pytest.raises(CheckpointDamagedError) as caught:
        checkpoint.restore(path)
    assert not isinstance(caught.value, tf.errors.NotFoundError)
