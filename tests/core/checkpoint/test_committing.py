"""A checkpoint is complete or it is not there, whenever the program ends."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxtribute as jd
from jaxtribute._src.core.checkpoint import arrays, committing, files
from jaxtribute._src.core.checkpoint.files import UNFINISHED
from jaxtribute.errors import CheckpointError, ConfigError, DeadlineError
from processes import run_python

_PROGRAM = """
    import os, signal, sys
    import jaxtribute as jd
    from jaxtribute._src.core.checkpoint import arrays

    value = jd.Variable(0)
    checkpoints = jd.CheckpointManager(jd.Checkpoint(v=value), sys.argv[1])
    checkpoints.restore_or_initialize()
    value.assign_add(1)
    if sys.argv[2] == "kill":
        arrays.merge = lambda directory: os.kill(os.getpid(), signal.SIGKILL)
    checkpoints.save()
"""


@pytest.mark.slow
def test_a_program_that_ends_in_a_save(tmp_path: Path) -> None:
    run_python(_PROGRAM, str(tmp_path), "end")  # waits for it
    run_python(_PROGRAM, str(tmp_path), "kill", status=-9)
    left = [".ckpt.owner", "ckpt-1", "ckpt-2.orbax-checkpoint-tmp"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    value = jd.Variable(0)
    checkpoints = jd.CheckpointManager(jd.Checkpoint(v=value), tmp_path, block=True)
    assert checkpoints.restore_or_initialize() == str(tmp_path / "ckpt-1")
    assert int(value) == 1
    checkpoints.save()
    checkpoints.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-1", "ckpt-2"]


_REPLACING = """
    import os, signal, sys
    from pathlib import Path
    import jaxtribute as jd

    value = jd.Variable(1)
    checkpoint = jd.Checkpoint(v=value)
    checkpoint.write(sys.argv[1], block=True)
    value.assign(2)
    rename, count = Path.rename, [0]

    def kill(*given):
        count[0] += 1
        if count[0] == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(*given)

    Path.rename = kill
    checkpoint.write(sys.argv[1], block=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2])
def test_a_program_that_is_killed_while_it_replaces_a_checkpoint(at: int, tmp_path: Path) -> None:
    run_python(_REPLACING, str(tmp_path / "ckpt-3"), str(at), status=-9)
    assert (tmp_path / "ckpt-3").exists() == (at == 1)
    value = jd.Variable(0)
    checkpoints = jd.CheckpointManager(jd.Checkpoint(v=value), tmp_path, block=True)
    assert jd.latest_checkpoint(tmp_path) == checkpoints.latest_checkpoint == str(tmp_path / "ckpt-3")
    assert checkpoints.checkpoints == [str(tmp_path / "ckpt-3")]
    checkpoints.checkpoint.read(tmp_path / "ckpt-3")
    assert int(value) == 1
    assert checkpoints.restore_or_initialize() == str(tmp_path / "ckpt-3")
    value.assign(3)
    checkpoints.save(checkpoint_number=3)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["ckpt-3"]
    value.assign(0)
    assert checkpoints.restore_or_initialize() == str(tmp_path / "ckpt-3")
    assert int(value) == 3


def moments(folder: Path, save: Callable[[], Any]) -> list[Path]:
    """Copies of a folder at each moment of a save when names in it change: what a kill leaves there."""
    copies: list[Path] = []
    rename, remove = Path.rename, files.remove

    def note() -> None:
        copies.append(folder.with_name(f"{folder.name}-{len(copies)}"))
        shutil.copytree(folder, copies[-1], ignore=shutil.ignore_patterns("*.owner"))

    def renamed(path: Path, target: Path) -> Path:
        note()
        return rename(path, target)

    def removed(path: Path) -> None:
        note()
        remove(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", renamed)
        patch.setattr(committing, "remove", removed)
        save()
    return copies


def test_a_replaced_checkpoint_is_whole_at_every_moment_after_a_kill_too(tmp_path: Path) -> None:
    value = jd.Variable(0)
    checkpoint = jd.Checkpoint(v=value)

    def save(folder: Path, new: int) -> None:
        value.assign(new)
        checkpoint.write(folder / "ckpt-3", block=True)

    def saved(folder: Path) -> int:
        checkpoint.read(folder / "ckpt-3")
        return int(value)

    save(tmp_path / "run", 1)
    left = moments(tmp_path / "run", lambda: save(tmp_path / "run", 2))
    assert {saved(folder) for folder in left} == {1, 2}
    for folder in left:
        before = saved(folder)
        assert {saved(again) for again in moments(folder, partial(save, folder, 3))} == {before, 3}
        assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == ["ckpt-3"]
        assert saved(folder) == 3


class Peers:
    """A cluster of two, as the first worker sees it, whose other worker has said what it will."""

    def __init__(self, says: dict[str, str], rank: int = 0) -> None:
        self.rank, self.workers, self.names = rank, 2, ("worker 0", "worker 1")
        self.says, self.timeout_s = says, 5.0
        self.deleted: list[str] = []
        self._number = -1

    def patience(self, timeout_s: float | None = None) -> float:
        return self.timeout_s if timeout_s is None else timeout_s

    def number(self, kind: str) -> int:
        assert kind == "checkpoint"
        self._number += 1
        return self._number

    def set(self, key: str, value: str) -> None:
        self.says[key] = value

    def meets(self, what: str) -> str:
        return what

    def get(self, key: str, timeout_s: float, *, of: int, at: str = "") -> str:
        assert at == "the save of a checkpoint" or "/marks/" in key
        if key not in self.says:
            raise DeadlineError(f"waited {timeout_s:g} s for {self.names[of]} to set {key!r}")
        return self.says[key]

    def delete(self, key: str) -> None:
        self.deleted.append(key)


def checkpoint(monkeypatch: pytest.MonkeyPatch, peers: Peers) -> tuple[jd.Checkpoint, jd.Variable]:
    monkeypatch.setattr(committing, "saving_cluster", lambda: peers)
    value = jd.Variable(1.0)
    return jd.Checkpoint(v=value), value


def test_the_first_of_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "jaxtribute/save/0/0/written/1": "",
        "jaxtribute/save/0/0/marks/1": "{}",
        "jaxtribute/save/0/1/written/1": "OSError: disk full",
    }
    peers = Peers(said)
    saved, _ = checkpoint(monkeypatch, peers)
    saved.save(tmp_path / "ckpt", block=True)
    assert peers.says["jaxtribute/save/0/0/result"] == ""
    with pytest.raises(CheckpointError, match=r"ckpt-2 was not saved: worker 1: OSError: disk full\. HINT"):
        saved.save(tmp_path / "ckpt", block=True)
    assert peers.deleted == ["jaxtribute/save/0/0/"]
    with pytest.raises(DeadlineError, match="waited 3 s for worker 1"):
        saved.save(tmp_path / "ckpt", block=True, timeout_s=3)
    with pytest.raises(DeadlineError, match="waited 5 s for worker 1"):
        saved.save(tmp_path / "ckpt", block=True)
    assert not (tmp_path / "ckpt-2").exists()
    assert not (tmp_path / "ckpt-3").exists()


def test_the_second_of_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, Any] = {
        "jaxtribute/save/0/0/made": "OSError: disk full",
        "jaxtribute/save/0/0/result": "worker 0: it",
    }
    peers = Peers(said, rank=1)
    saved, _ = checkpoint(monkeypatch, peers)
    with pytest.raises(CheckpointError, match="worker 0: it"):
        saved.save(tmp_path / "ckpt", block=True)
    assert said["jaxtribute/save/0/0/written/1"] == "OSError: disk full"


def test_processes_that_do_not_know_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert committing.saving_cluster() is None
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"one of 2 processes .* HINT"):
        committing.saving_cluster()


def test_what_saves_that_failed_have_left_goes_at_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = jd.CheckpointManager(jd.Checkpoint(number=1), tmp_path, block=True)

    def full(directory: Path, values: Any) -> None:
        monkeypatch.setattr(committing, "remove", lambda path: None)  # a write that goes on makes its folder anew
        raise OSError(errno.ENOSPC, "disk full")

    for _ in range(3):
        monkeypatch.setattr(arrays, "write", full)
        with pytest.raises(CheckpointError, match="disk full"):
            manager.save()
        monkeypatch.undo()
        assert len([path for path in tmp_path.iterdir() if path.name.endswith(UNFINISHED)]) == 1
    (tmp_path / f"other-1{UNFINISHED}").mkdir()
    assert manager.save()
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(UNFINISHED)] == [f"other-1{UNFINISHED}"]
    manager.close()
