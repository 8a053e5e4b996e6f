"""Places where nothing can be saved, and odd names of those where it can: one clear error each, or what was meant."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.checkpoint import committing, files
from jaxtribute.errors import ArgumentError, ArgumentTypeError, CheckpointError
from processes import run_python


@pytest.mark.parametrize("prefix", ["/", "//", "folder/", "folder//", "./", ".", "..", "a/.", "a/..", "~", Path("/")])
def test_prefixes_without_a_name(prefix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = jd.Checkpoint(v=1)
    with pytest.raises(ArgumentError, match=r"file_prefix=.* names a folder, .* HINT: add one, such as .*ckpt'"):
        checkpoint.save(prefix)
    assert checkpoint.save_counter == 0
    assert list(tmp_path.iterdir()) == []
    assert not Path("/-1").exists()


@pytest.mark.parametrize("path", ["/", "//", Path("/")])
def test_paths_without_a_name(path: Any) -> None:
    with pytest.raises(ArgumentError, match=r"path='//?'.* HINT"):
        jd.Checkpoint(v=1).write(path)


def test_names_that_no_file_system_takes(tmp_path: Path) -> None:
    checkpoint = jd.Checkpoint(v=1)
    for name in ("x" * 300, "é" * 120):
        for call in (
            lambda name=name: checkpoint.save(tmp_path / name),
            lambda name=name: jd.CheckpointManager(checkpoint, tmp_path, checkpoint_name=name),
        ):
            with pytest.raises(ArgumentError, match=r"=.*has \d+ bytes.*HINT"):
                call()
    with pytest.raises(ArgumentError, match=r"directory='~nobody-of-this-name/x': .*HINT"):
        jd.CheckpointManager(checkpoint, "~nobody-of-this-name/x")


def test_a_relative_path_means_the_folder_where_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with jd.CheckpointManager(jd.Checkpoint(v=1), "run//", block=True) as manager:
        manager.save()
        monkeypatch.chdir(tmp_path / "other")
        manager.save()
        assert manager.latest_checkpoint == str(tmp_path / "run" / "ckpt-2")
    assert list((tmp_path / "other").iterdir()) == []


def test_a_working_folder_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    checkpoint = jd.Checkpoint(v=1)
    manager = jd.CheckpointManager(checkpoint, "run", block=True)
    gone.rmdir()
    for call in (
        lambda: checkpoint.save("ckpt"),
        lambda: checkpoint.restore("ckpt-1"),
        lambda: jd.CheckpointManager(checkpoint, "run"),
        lambda: jd.latest_checkpoint("run"),
    ):
        with pytest.raises(ArgumentError, match=r"is relative, and the working folder has been deleted\. HINT"):
            call()
    assert manager.save() == str(gone / "run" / "ckpt-1")  # made anew
    assert checkpoint.save(tmp_path / "here", block=True) == str(tmp_path / "here-2")
    manager.close()


@pytest.mark.parametrize("below", ["", "folder"])
def test_a_file_where_the_folder_should_be(below: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    checkpoint = jd.Checkpoint(v=1)
    for call in (
        lambda: jd.CheckpointManager(checkpoint, file / below),
        lambda: jd.latest_checkpoint(file / below),
        lambda: checkpoint.save(file / below / "ckpt", block=True),
    ):
        with pytest.raises(
            CheckpointError, match=r"file.*(no folder: a file is there|Not a directory|File exists).*HINT"
        ):
            call()
    assert file.read_text() == "mine"


def test_a_file_where_the_checkpoint_should_be(tmp_path: Path) -> None:
    for name in ("ckpt-1", "ckpt-1.orbax-checkpoint-tmp"):
        (tmp_path / name).write_text("")
    with jd.CheckpointManager(jd.Checkpoint(v=1), tmp_path, block=True) as manager:
        assert manager.save() == manager.latest_checkpoint == str(tmp_path / "ckpt-1")


def test_checkpoints_that_are_links(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    with jd.CheckpointManager(jd.Checkpoint(v=1), folder, max_to_keep=2, block=True) as manager:
        manager.save()
        (folder / "ckpt-1").rename(elsewhere)
        (folder / "ckpt-1").symlink_to(elsewhere)
        assert manager.restore_or_initialize() == str(folder / "ckpt-1")
        for _ in range(3):
            manager.save()
    assert sorted(path.name for path in folder.iterdir()) == ["ckpt-3", "ckpt-4"]
    jd.Checkpoint(v=0).read(elsewhere)  # the link is deleted, not what it points to


def test_a_folder_that_is_renamed_or_deleted_between_two_saves(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with jd.CheckpointManager(jd.Checkpoint(v=1), folder, block=True) as manager:
        manager.save()
        folder.rename(tmp_path / "moved")
        assert manager.save() == str(folder / "ckpt-2") == manager.latest_checkpoint
        shutil.rmtree(folder)
        assert manager.save() == str(folder / "ckpt-3") == manager.latest_checkpoint
        assert [Path(path).name for path in manager.checkpoints] == ["ckpt-3"]
    assert jd.latest_checkpoint(tmp_path / "moved") == str(tmp_path / "moved" / "ckpt-1")


@pytest.mark.parametrize(
    "number", [-1, 2.5, 2**63, 10**400, pytest.param(10**5000, id="long"), True, "7", float("inf"), 2.0**70]
)
def test_numbers_that_cannot_be(number: Any, tmp_path: Path) -> None:
    manager = jd.CheckpointManager(jd.Checkpoint(v=1), tmp_path, block=True)
    with pytest.raises((ArgumentError, ArgumentTypeError), match=r"checkpoint_number=.*HINT"):
        manager.save(number)
    largest = 2**63 - 1
    assert manager.save(largest) == manager.latest_checkpoint == str(tmp_path / f"ckpt-{largest}")
    assert manager.save(np.uint8(7)) == manager.latest_checkpoint == str(tmp_path / "ckpt-7")
    manager.close()


@pytest.mark.parametrize("step", ["many", float("nan"), [1, 2]])
def test_steps_that_are_no_numbers(step: Any, tmp_path: Path) -> None:
    manager = jd.CheckpointManager(jd.Checkpoint(v=1), tmp_path, step_counter=lambda: step, checkpoint_interval=1)
    with pytest.raises(ArgumentTypeError, match=r"step_counter is .*HINT"):
        manager.save()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [("ENOSPC", "free some space"), ("EROFS", "can only be read"), ("EDQUOT", "quota"), ("EACCES", "may not write")],
)
def test_a_disk_that_takes_nothing_more(
    number: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = jd.CheckpointManager(jd.Checkpoint(v=1), tmp_path, block=True)
    manager.save()
    write = files.write_text

    def fail(path: Path, text: str) -> None:
        write(path, text[: len(text) // 2])
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)), str(path))

    monkeypatch.setattr(committing, "write_text", fail)
    with pytest.raises(CheckpointError, match=rf"ckpt-2 was not saved: .*HINT: .*{remedy}.* untouched"):
        manager.save()
    # Nothing half written stays, which would keep the disk full.
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ckpt.owner", "ckpt-1"]
    monkeypatch.undo()
    assert manager.save() == str(tmp_path / "ckpt-3") == manager.latest_checkpoint
    manager.close()


def test_a_folder_of_which_only_the_outer_one_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = jd.CheckpointManager(jd.Checkpoint(v=1), tmp_path, block=True)
    make = Path.mkdir

    def fail(path: Path, *args: Any, **settings: Any) -> None:
        if path.name == committing.STATE:
            make(path.parent, *args, **settings)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        make(path, *args, **settings)

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(CheckpointError, match=r"ckpt-1 was not saved: .*HINT: .*free some space"):
        manager.save()
    assert [path.name for path in tmp_path.iterdir()] == [".ckpt.owner"]
    monkeypatch.undo()
    manager.close()


_FULL = """
    import os, sys
    import jax.numpy as jnp
    import jaxtribute as jd

    folder, model = sys.argv[1], jd.Variable(jnp.ones(300_000))
    manager = jd.CheckpointManager(jd.Checkpoint(v=model), folder + "/run", max_to_keep=1, block=True)
    for _ in range(3):
        try:
            manager.save()
        except jd.errors.CheckpointError as error:
            assert "No space left on device" in str(error) and "HINT: free some space" in str(error), error
        else:
            assert manager.latest_checkpoint == folder + "/run/ckpt-1"
    rest = os.open(folder + "/rest", os.O_WRONLY | os.O_CREAT)
    try:  # to the last byte: not even the owner's file can be written
        while os.write(rest, b"0" * 100):
            pass
    except OSError:
        pass
    manager.close()
    try:
        manager.save()
    except jd.errors.CheckpointError as error:
        assert "HINT: free some space" in str(error), error
    os.unlink(folder + "/filler"), os.truncate(folder + "/rest", 0)
    manager.save()
    assert sorted(os.listdir(folder + "/run")) == [".ckpt.owner", "ckpt-5"]
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB in memory, of which 1.2 are taken."""
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(tmp_path)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("this user may not mount a disk")
    (tmp_path / "filler").write_bytes(b"0" * 1_200_000)
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.slow
def test_a_disk_that_is_full(small_disk: Path) -> None:
    run_python(_FULL, str(small_disk))


@pytest.mark.slow
def test_a_disk_that_can_only_be_read(small_disk: Path) -> None:
    with jd.CheckpointManager(jd.Checkpoint(v=1), small_disk / "run", block=True) as manager:
        manager.save()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    checkpoint = jd.Checkpoint(v=0)
    manager = jd.CheckpointManager(checkpoint, small_disk / "run", block=True)
    assert manager.restore_or_initialize() == str(small_disk / "run" / "ckpt-1")
    assert checkpoint.v == 1
    with pytest.raises(CheckpointError, match=r"ckpt-2 was not saved: .*HINT: the disk can only be read"):
        manager.save()
    manager.close()
