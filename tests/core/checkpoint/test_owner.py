"""Two jobs never save under one name in one folder at a time, and none waits for one that is gone."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import jaxtribute as jd
from jaxtribute._src.core.checkpoint import arrays, owner
from jaxtribute._src.core.checkpoint.owner import Owner, ProcessIdentity
from jaxtribute.errors import CheckpointError
from processes import run_python

_IMPORTS = """
    import os, sys, time
    from pathlib import Path
    from jaxtribute._src.core.checkpoint import owner
    from jaxtribute._src.core.checkpoint.owner import Owner
    from jaxtribute.errors import CheckpointError
    folder = Path(sys.argv[1])
"""
_HOLD = (
    _IMPORTS
    + """
    held = Owner(folder, "ckpt")
    held.claim()
    (folder / "ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    if sys.argv[2] == "kill":
        os._exit(0)
"""
)
_TURNS = (
    _IMPORTS
    + """
    owner._POLL_S = owner._GRACE_S = 0.001
    done = 0
    while done < 100:
        mine = Owner(folder, "ckpt")
        try:
            mine.claim()
        except CheckpointError:
            continue
        with (folder / "inside").open("x"):
            mine.check()
        (folder / "inside").unlink()
        mine.release()
        done += 1
"""
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_POLL_S", 0.01)
    monkeypatch.setattr(owner, "_GRACE_S", 0.05)
    monkeypatch.setattr(owner, "_TOUCHED_EVERY_S", 0.05)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The file of a process on another machine, just touched."""
    file = tmp_path / ".ckpt.owner"
    file.write_text(json.dumps(asdict(replace(ProcessIdentity.own(), host="other", machine="other"))))
    return file


@pytest.fixture
def other_job(tmp_path: Path) -> Iterator[Path]:
    """A folder that another process owns until a file `go` is there."""
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(run_python, _HOLD, str(tmp_path), "kill")
        deadline = time.monotonic() + 120
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < deadline
            assert not job.done()
            time.sleep(0.01)
        yield tmp_path
        (tmp_path / "go").touch()
        job.result()


@pytest.mark.slow
def test_another_job_on_this_machine(other_job: Path) -> None:
    value = jd.Variable(1.0)
    manager = jd.CheckpointManager(jd.Checkpoint(v=value), other_job, block=True)
    actions: list[Callable[[], object]] = [
        manager.restore_or_initialize,
        manager.save,
        lambda: jd.Checkpoint(v=value).save(other_job / "ckpt", block=True),
    ]
    for action in actions:
        with pytest.raises(CheckpointError, match=r"process \d+ on .* saves under the same name .*HINT"):
            action()
    assert jd.latest_checkpoint(other_job) is None
    with jd.CheckpointManager(jd.Checkpoint(v=value), other_job, checkpoint_name="other", block=True) as other:
        assert other.save()  # a name of its own
    # It ends without a word, and is taken over at once.
    (other_job / "go").touch()
    deadline = time.monotonic() + 60
    while (text := (other_job / ".ckpt.owner").read_text()) and json.loads(text)["pid"] != os.getpid():
        assert time.monotonic() < deadline
        try:
            assert manager.restore_or_initialize() is None
        except CheckpointError:
            continue
    assert manager.save(checkpoint_number=1) == str(other_job / "ckpt-1")
    manager.close()
    assert not (other_job / ".ckpt.owner").exists()


@pytest.mark.slow
def test_jobs_take_turns(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        for job in [pool.submit(run_python, _TURNS, str(tmp_path)) for _ in range(2)]:
            job.result()
    assert list(tmp_path.iterdir()) == []


def test_a_job_elsewhere_that_lives(elsewhere: Path) -> None:
    stop = threading.Event()

    def live() -> None:
        while not stop.wait(0.02):
            os.utime(elsewhere)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with pytest.raises(CheckpointError, match=r"on other .*HINT"):
            Owner(elsewhere.parent, "ckpt").claim()
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("content", [None, b"", b"\xff{", b"[1]", b'{"pid": 1}'])
def test_a_job_elsewhere_that_is_gone(content: bytes | None, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_STALE_S", 0.2)
    if content is not None:
        elsewhere.write_bytes(content)  # what a full disk, or an error of it, has left
    mine = Owner(elsewhere.parent, "ckpt")
    start = time.monotonic()
    mine.claim()
    assert time.monotonic() - start >= 0.15
    assert json.loads(elsewhere.read_text())["pid"] == os.getpid()
    mine.release()
    assert list(elsewhere.parent.iterdir()) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        lambda file: file.symlink_to("/dev/zero"),
        lambda file: file.symlink_to(file),
        lambda file: file.symlink_to("nowhere"),
        lambda file: file.write_bytes(b" " * (1 << 17)),
    ],
    ids=["pipe", "folder", "device", "loop", "nowhere", "large"],
)
def test_what_is_no_file_of_a_process(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / ".ckpt.owner")
    with pytest.raises(CheckpointError, match=r"ckpt\.owner is to say.*HINT: move it away"):
        Owner(tmp_path, "ckpt").claim()
    assert [file.name for file in tmp_path.iterdir()] == [".ckpt.owner"]


@pytest.mark.parametrize("content", [None, b"", b"[" * 50_000])
def test_whom_it_waits_for_is_said_within_a_second(
    content: bytes | None, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(owner, "_WORD_S", 0.1)
    monkeypatch.setattr(owner, "_STALE_S", 0.5)
    if content is not None:
        elsewhere.write_bytes(content)
    mine = Owner(elsewhere.parent, "ckpt")
    mine.claim()
    mine.release()
    [record] = caplog.records
    whom = " on other " if content is None else "a process that has not written its name"
    assert str(elsewhere) in record.getMessage()
    assert whom in record.getMessage()
    assert "HINT" in record.getMessage()


def test_the_file_of_this_process_is_touched_until_it_is_released(tmp_path: Path) -> None:
    mine, file = Owner(tmp_path, "ckpt"), tmp_path / ".ckpt.owner"
    mine.claim()
    os.utime(file, (1, 1))
    deadline = time.monotonic() + 60
    while file.stat().st_mtime < 10:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    again = Owner(tmp_path, "ckpt")
    again.claim()  # of one process
    again.release()
    assert file.exists()
    del mine  # an object that nobody has any more holds nothing
    assert not file.exists()
    again.claim()
    assert file.exists()
    again.release()


def test_a_job_that_was_stopped_learns_that_another_has_taken_over(tmp_path: Path) -> None:
    manager = jd.CheckpointManager(jd.Checkpoint(v=jd.Variable(1.0)), tmp_path, block=True)
    manager.save()
    finish = arrays.merge
    other = replace(ProcessIdentity.own(), host="other", machine="other")

    def take_over(*_: object) -> None:
        (tmp_path / ".ckpt.owner").write_text(json.dumps(asdict(other)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "merge", lambda directory: (finish(directory), take_over()))
        with pytest.raises(CheckpointError, match=r"now belong to process \d+ on other .*HINT"):
            manager.save()
    assert [Path(path).name for path in manager.checkpoints] == ["ckpt-1"]
    manager.close()
    assert (tmp_path / ".ckpt.owner").exists()  # the other's


def test_a_process_is_told_from_a_later_one_of_its_number() -> None:
    own = ProcessIdentity.own()
    assert own.same(own)
    assert own.same(ProcessIdentity.parse(json.dumps(asdict(own))))
    assert not own.ended(own.machine)
    assert replace(own, started="1").ended(own.machine) == bool(own.started)
    assert replace(own, pid=2**22 + 1).ended(own.machine)
    assert not replace(own, pid=2**22 + 1).ended("elsewhere")
