"""Several managers of one process: no checkpoint is a mixture of two states, and the manager made last takes over."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.checkpoint import arrays
from jaxtribute.errors import CheckpointError
from processes import run_python

TAKEN_OVER = r"made later in this process has saved another Checkpoint .*\(ckpt\).*HINT"


def cell(folder: Path, value: float, **options: Any) -> jd.CheckpointManager:
    """What a notebook's cell makes: variables that are all of one value, and a manager of them."""
    variables = {str(place): jd.Variable(np.full(100, value, np.float32)) for place in range(4)}
    return jd.CheckpointManager(jd.Checkpoint(model=variables), folder, **options)


def values_in(path: str) -> set[float]:
    variables = {str(place): jd.Variable(np.zeros(100, np.float32)) for place in range(4)}
    jd.Checkpoint(model=variables).read(path)
    return {float(one) for variable in variables.values() for one in np.unique(variable.numpy())}


def test_a_cell_that_is_run_twice(tmp_path: Path) -> None:
    first = cell(tmp_path, 1.0)
    first.save()  # in the background
    second = cell(tmp_path, 2.0)
    assert second.save() == str(tmp_path / "ckpt-1")  # waits for it, and takes its place
    second.wait()  # it takes over when it begins to write
    with pytest.raises(CheckpointError, match=TAKEN_OVER):
        first.save()
    second.save()
    second.wait()
    assert [values_in(path) for path in second.checkpoints] == [{2.0}, {2.0}]
    # Reading it may, and an earlier one does not come back when the later is gone.
    assert first.latest_checkpoint == second.latest_checkpoint == str(tmp_path / "ckpt-2")
    assert first.restore_or_initialize() == str(tmp_path / "ckpt-2")
    second.close()
    del second
    gc.collect()
    with pytest.raises(CheckpointError, match=TAKEN_OVER):
        first.save()
    first.close()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["ckpt-1", "ckpt-2"]


def test_a_manager_that_only_restores_takes_nothing_over(tmp_path: Path) -> None:
    training = cell(tmp_path, 1.0, block=True)
    training.save()
    with cell(tmp_path, 0.0) as evaluating:
        assert evaluating.restore_or_initialize() == str(tmp_path / "ckpt-1")
        assert training.save() == str(tmp_path / "ckpt-2")
    assert (tmp_path / ".ckpt.owner").exists()
    training.save()
    training.close()
    assert not (tmp_path / ".ckpt.owner").exists()


def test_managers_of_one_checkpoint_and_single_saves_share_a_name(tmp_path: Path) -> None:
    first = cell(tmp_path, 1.0, block=True)
    second = jd.CheckpointManager(first.checkpoint, tmp_path, block=True)
    for save in (first.save, second.save, lambda: first.checkpoint.save(tmp_path / "ckpt"), first.save, second.save):
        save()
    assert [Path(path).name for path in first.checkpoints] == [f"ckpt-{number}" for number in range(1, 6)]
    first.close()
    assert (tmp_path / ".ckpt.owner").exists()
    second.close()


def test_other_names_and_folders_are_nobody_elses(tmp_path: Path) -> None:
    managers = [
        cell(tmp_path / "a", 1.0, block=True),
        cell(tmp_path / "a", 2.0, block=True, checkpoint_name="best"),
        cell(tmp_path / "b", 3.0, block=True),
    ]
    for _ in range(2):
        for manager in managers:
            manager.save()
    for value, manager in enumerate(managers, 1):
        assert [values_in(path) for path in manager.checkpoints] == [{float(value)}] * 2
        manager.close()


def test_a_folder_by_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    first, second = cell(tmp_path / "real", 1.0, block=True), cell(Path("link/../link"), 2.0, block=True)
    first.save()
    second.save()
    with pytest.raises(CheckpointError, match=TAKEN_OVER):
        first.save()
    first.close()
    second.close()


@pytest.fixture
def slow_saves(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Saves come to their end once the event is set."""
    merge, go = arrays.merge, threading.Event()

    def wait(directory: Path) -> None:
        assert go.wait(60)
        merge(directory)

    monkeypatch.setattr(arrays, "merge", wait)
    yield go
    go.set()


def test_a_save_that_is_under_way_ends_before_another_managers_begins(
    tmp_path: Path, slow_saves: threading.Event
) -> None:
    first, second = cell(tmp_path, 1.0), cell(tmp_path, 2.0)
    first.save(7)
    unfinished = tmp_path / "ckpt-7.orbax-checkpoint-tmp"
    while not unfinished.exists():
        first.checkpoint._background.wait(0.01)  # pyright: ignore[reportPrivateUsage]
    second.save(7)
    assert first.checkpoint.saving
    assert second.checkpoint.saving
    slow_saves.set()
    first.wait()
    second.wait()
    assert [values_in(path) for path in second.checkpoints] == [{2.0}]
    first.close()
    second.close()


def test_threads_that_save_at_once(tmp_path: Path) -> None:
    """Two managers of two states, each in two threads: every checkpoint is of one state."""
    managers = [cell(tmp_path, value, max_to_keep=2) for value in (1.0, 2.0)]
    refused: list[str] = []

    def save(manager: jd.CheckpointManager) -> None:
        for _ in range(6):
            try:
                manager.save()
                manager.wait()
            except CheckpointError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=save, args=(manager,)) for manager in managers * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [values_in(path) for path in managers[1].checkpoints]
    assert found == [{2.0}] * 2
    assert all("made later in this process" in text for text in refused)
    assert managers[1].checkpoint.save_counter == 12
    assert not list(tmp_path.glob("*.orbax-checkpoint-tmp"))
    for manager in managers:
        manager.close()


_FORKS = """
    import os, sys
    from pathlib import Path
    import jaxtribute as jd
    from jaxtribute._src.core.checkpoint import owner

    owner._GRACE_S = 0.1
    checkpoint = jd.Checkpoint(v=1)
    manager = jd.CheckpointManager(checkpoint, sys.argv[1], block=True)
    manager.save()
    seat = manager._owner.seat
    assert seat.saving.acquire() and checkpoint._background.alone.acquire()  # as other threads might in that moment
    if not (child := os.fork()):
        refused = []
        for action in (manager.save, owner.Owner(Path(sys.argv[1]), "ckpt").claim):
            try:
                action()
            except jd.errors.JaxtributeError as error:
                refused.append(str(error))
        manager._owner.release()
        os._exit("was forked by process" not in refused[0] or "saves under the same name" not in refused[1])
    assert os.waitpid(child, 0)[1] == 0
    seat.saving.release(), checkpoint._background.alone.release()
    assert os.path.exists(sys.argv[1] + "/.ckpt.owner")
    manager.save()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_is_another_one(tmp_path: Path) -> None:
    run_python(_FORKS, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-1", "ckpt-2"]
