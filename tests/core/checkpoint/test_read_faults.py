"""What cannot be read now is not damaged: no older checkpoint is taken for it, and nothing begins anew."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute._src.core import checksums, reading
from jaxtribute._src.core.checkpoint import arrays
from jaxtribute.errors import CheckpointDamagedError, CheckpointError, CheckpointUnreadableError
from read_faults import FOLDERS, Disk

PASSING = ("EIO", "EMFILE", "ESTALE", "ENFILE", "EACCES", "ENOMEM", "ETIMEDOUT", "EHOSTDOWN", "ENODEV", "EINTR")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PAUSES_S", (0.001, 0.001))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with the checkpoints 1, 2 and 3 of values 10, 20 and 30."""
    checkpoint = jd.Checkpoint(v=0)
    with jd.CheckpointManager(checkpoint, tmp_path / "run", block=True) as manager:
        for value in (10, 20, 30):
            checkpoint.v = value
            manager.save()
    return tmp_path / "run"


@pytest.mark.parametrize("error", PASSING[:3])
def test_an_error_that_passes_changes_nothing(error: str, saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    for names in FOLDERS:
        checkpoint = jd.Checkpoint(v=0)
        manager = jd.CheckpointManager(checkpoint, saved, init_fn=lambda: pytest.fail("begun anew"), block=True)
        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
            disk = Disk(patch, error, names, 1)
            assert jd.latest_checkpoint(saved) == str(saved / "ckpt-3")
            assert disk.failed
            disk.failed.clear()
            assert manager.restore_or_initialize() == str(saved / "ckpt-3")
            disk.failed.clear()
            checkpoint.restore(saved / "ckpt-3")  # as a worker does that was told the path
        assert checkpoint.v == 30
        assert "left out" not in caplog.text
        manager.close()
    with jd.CheckpointManager(jd.Checkpoint(v=0), saved, block=True) as manager:
        manager.restore_or_initialize()
        assert manager.save() == str(saved / "ckpt-4")


@pytest.mark.parametrize("error", PASSING[:3])
def test_an_error_that_lasts_is_no_damage(error: str, saved: Path) -> None:
    for names in FOLDERS:
        checkpoint = jd.Checkpoint(v=7)
        manager = jd.CheckpointManager(checkpoint, saved, init_fn=lambda: pytest.fail("begun anew"), block=True)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, error, names, float("inf"))
            text = r"/run[\s\S]* cannot be read now: [\s\S]*HINT"
            with pytest.raises(CheckpointUnreadableError, match=text):
                jd.latest_checkpoint(saved)
            with pytest.raises(CheckpointUnreadableError, match=text):
                print(manager.latest_checkpoint)
            with pytest.raises(CheckpointUnreadableError, match=text):
                manager.restore_or_initialize()
            with pytest.raises(CheckpointUnreadableError, match=text):
                checkpoint.restore(saved / "ckpt-3")
        assert checkpoint.v == 7
        # Whoever goes on all the same does not lose what may be whole.
        with pytest.raises(CheckpointError, match=r"ckpt-1 is not replaced.*HINT"):
            manager.save(1)
        assert jd.latest_checkpoint(saved) == str(saved / "ckpt-3")
        assert manager.restore_or_initialize() == str(saved / "ckpt-3")
        assert checkpoint.v == 30
        manager.close()


@pytest.mark.parametrize("damaged", ["the largest", "the smallest"])
def test_damage_that_is_certain_counts_though_other_files_cannot_be_read(damaged: str, saved: Path) -> None:
    """Files are read from the largest on: what cannot be read comes before the damage, or after it."""
    files = sorted(
        (path for path in (saved / "ckpt-3").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    files = [path for path in files if path.name != "jaxtribute.json"]
    bad, unread = (files[-1], files[0]) if damaged == "the largest" else (files[0], files[-1])
    bad.write_bytes(b"")
    mark = checksums.checksum_of

    def fail(path: Path) -> Any:
        if path.name == unread.name and "ckpt-3" in str(path):
            raise OSError(errno.EIO, "no")
        return mark(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "checksum_of", fail)
        with pytest.raises(CheckpointDamagedError):
            jd.Checkpoint(v=0).restore(saved / "ckpt-3")


@pytest.mark.parametrize("text", [None, "Failed to open: Too many open files [os_error_code='24']"])
def test_arrays_that_cannot_be_read_now(text: str | None, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorStore reads them, whose errors are texts."""
    read, calls = arrays.read, list[int]()

    def fail(*given: Any) -> Any:
        calls.append(1)
        if len(calls) < 3:
            raise OSError(errno.EIO, "not now") if text is None else ValueError(text)
        return read(*given)

    monkeypatch.setattr(arrays, "read", fail)
    checkpoint = jd.Checkpoint(v=7)
    checkpoint.restore(saved / "ckpt-3")
    assert (checkpoint.v, len(calls)) == (30, 3)
    calls.clear()
    monkeypatch.setattr(reading, "_PAUSES_S", ())
    with pytest.raises(CheckpointUnreadableError, match=r"nothing has changed: .*cannot be read now.*HINT"):
        checkpoint.restore(saved / "ckpt-1")
    assert checkpoint.v == 30


def test_what_stays_for_good_is_not_decided_by_an_error(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = jd.Checkpoint(v=7)
    manager = jd.CheckpointManager(checkpoint, saved, 1, keep_checkpoint_every_n_hours=1000.0, block=True)
    (saved / ".ckpt.kept.json").write_text("[]\n")
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        Disk(patch, "EIO", ".kept.json", float("inf"))
        assert manager.save(4) == str(saved / "ckpt-4")  # it is saved all the same
    assert "ckpt-4 is saved. What is older stays until the next save, as CheckpointUnreadableError" in caplog.text
    manager.save(5)
    assert [Path(path).name for path in manager.checkpoints] == ["ckpt-5"]
    manager.close()


def test_which_errors_pass() -> None:
    assert all(reading.passing(OSError(getattr(errno, name), "")) for name in PASSING)
    assert reading.passing(MemoryError())
    assert reading.passing(OSError("of another library"))
    cause = ValueError("wrapped")
    cause.__cause__ = OSError(errno.EIO, "")
    assert reading.passing(cause)
    assert not reading.passing(ValueError("something else"))
    for name in ("ENOENT", "ENOTDIR", "EISDIR", "ELOOP"):
        assert not reading.passing(OSError(getattr(errno, name), ""))
