"""One process that is told to end: it saves once and goes on where it was, and tells who is to go."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute._src.addons.preemption import agreement
from jaxtribute._src.addons.preemption import handler as handlers
from jaxtribute._src.addons.preemption.agreement import NoticeListener
from jaxtribute._src.core.checkpoint.owner import Owner
from jaxtribute.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    ClusterError,
    ContextError,
    DeadlineError,
)

Handler = jd.experimental.PreemptionCheckpointHandler
Config = jd.experimental.TerminationConfig


@pytest.fixture
def made() -> Generator[list[Any]]:
    """Handlers to close at the end."""
    handlers: list[Any] = []
    yield handlers
    for one in handlers:
        one.close()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def start(made: list[Any], folder: Path, config: Any = None) -> tuple[Any, jd.Variable]:
    step = jd.Variable(0)
    made.append(Handler(None, jd.Checkpoint(step=step), folder, config))
    return made[-1], step


def preempt(handler: Any) -> None:
    """Sends SIGTERM and waits until the handler has heard of it."""
    os.kill(os.getpid(), signal.SIGTERM)
    await_notice(handler)


def await_notice(handler: Any) -> None:
    deadline = time.monotonic() + 120
    while not handler.preempted:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    # It is published just after it is heard.
    while not handler._rounds._learned:
        time.sleep(0.001)


def test_a_training_is_saved_and_goes_on(
    tmp_path: Path, made: list[Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(handlers.REPORT, str(tmp_path / "report"))
    handler, step = start(made, tmp_path / "folder")
    assert (handler.total_run_calls, handler.preempted) == (0, False)

    def train(by: int) -> int:
        if int(step) == 3:
            preempt(handler)
        return int(step.assign_add(by))

    def loop() -> None:
        for _ in range(handler.total_run_calls, 10):
            handler.run(train, by=1)

    with pytest.raises(SystemExit) as ended:
        loop()
    assert ended.value.code == 75
    assert (int(step), handler.total_run_calls) == (4, 4)
    assert "ckpt-1 after 4 calls of run, since this process got SIGTERM" in capfd.readouterr().err
    handler.close()

    again, step = start(made, tmp_path / "folder")
    assert (int(step), again.total_run_calls) == (4, 4)
    assert again.run(lambda: int(step.assign_add(1))) == 5
    events = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    path = str(tmp_path / "folder" / "ckpt-1")
    assert events == [
        {"event": "start", "checkpoint": None, "runs": 0},
        {"event": "saved", "checkpoint": path, "runs": 4},
        {"event": "start", "checkpoint": path, "runs": 4},
    ]


def test_exit_and_save_by_functions_of_the_users(tmp_path: Path, made: list[Any]) -> None:
    events: list[Any] = []
    config = Config(
        exit_fn=lambda: events.append("exit"), save_fn=lambda *args, **kwargs: events.append((args, kwargs))
    )
    handler, _ = start(made, tmp_path, config)
    with handler.watch_preemption_scope():
        handler.save_checkpoint_if_preempted(1)
        preempt(handler)
        handler.save_checkpoint_if_preempted(2, name="n")
    handler.run(lambda: None)
    assert events == [((2,), {"name": "n"}), "exit"]
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_the_scope_is_a_place_to_save(tmp_path: Path, made: list[Any]) -> None:
    handler, _ = start(made, tmp_path)
    with pytest.raises(SystemExit), handler.watch_preemption_scope():
        preempt(handler)
    assert jd.latest_checkpoint(tmp_path) is not None


def test_a_grace_period_is_used_for_more_steps(tmp_path: Path, made: list[Any]) -> None:
    exits: list[int] = []
    step = jd.Variable(0)
    manager = jd.CheckpointManager(jd.Checkpoint(step=step), tmp_path, max_to_keep=None)
    config = Config(grace_period=3600.0, exit_fn=lambda: exits.append(int(step)))
    handler: Any = Handler(None, manager, termination_config=config)
    made.append(handler)
    handler.run(step.assign_add, 1)
    preempt(handler)
    handler._run_s = 1000.0  # as if each step took that long: three fit
    handler.save_checkpoint_if_preempted()
    assert exits == []
    while not exits:
        handler.run(step.assign_add, 1)
    assert exits == [4]
    assert [Path(path).name for path in manager.checkpoints] == ["ckpt-1", "ckpt-2"]


def test_a_platform_that_says_it_by_other_means(
    tmp_path: Path, made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "_ASK_S", 0.01)
    leaving = threading.Event()
    handler, _ = start(made, tmp_path, Config(termination_watcher_fn=leaving.is_set))
    handler.run(lambda: None)
    leaving.set()
    await_notice(handler)
    with pytest.raises(SystemExit):
        handler.run(lambda: None)


def test_a_folder_to_read_from_only_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(_: Owner) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(Owner, "claim", claim)
    manager = jd.CheckpointManager(jd.Checkpoint(v=jd.Variable(1)), tmp_path)
    assert manager.read_only == ""
    assert manager.restore_or_initialize() is None  # enough for who only reads
    assert "Permission denied" in manager.read_only
    with pytest.raises(CheckpointError, match=r"nothing can be saved in .* lost at a preemption: .*denied.*HINT"):
        Handler(None, manager)


def test_what_makes_no_sense(tmp_path: Path) -> None:
    checkpoint = jd.Checkpoint(step=jd.Variable(0))
    manager = jd.CheckpointManager(checkpoint, tmp_path)
    with pytest.raises(ArgumentError, match=r"has no folder\. HINT"):
        Handler(None, checkpoint)
    with pytest.raises(ArgumentError, match=r"besides a CheckpointManager.* HINT"):
        Handler(None, manager, tmp_path)
    wrong: Any = 3
    with pytest.raises(ArgumentTypeError, match=r"is a int\. HINT"):
        Handler(None, wrong)
    with pytest.raises(ArgumentError, match=r"grace_period is -1"):
        Config(grace_period=-1)
    errors: list[Exception] = []

    def elsewhere() -> None:
        try:
            Handler(None, manager)
        except ContextError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere, name="other")
    thread.start()
    thread.join()
    assert "in the thread 'other'" in str(errors[0])


class Peers:
    """A cluster of two, as its first worker sees it."""

    def __init__(self) -> None:
        self.rank, self.workers, self.names = 0, 2, ("worker 0", "worker 1")
        self.watch = SimpleNamespace(left={}, failure=None)
        self.store: dict[str, str] = {}
        self.error: Exception | None = None

    def try_get(self, key: str) -> str | None:
        if self.error is not None:
            raise self.error
        return self.store.get(key)

    def set(self, key: str, value: str) -> None:
        self.store[key] = value


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Peers:
    found = Peers()
    monkeypatch.setattr(handlers, "saving_cluster", lambda: found)
    return found


def test_a_process_alone_has_nobody_to_watch() -> None:
    watcher = jd.experimental.PreemptionWatcher()
    assert watcher.preemption_message is None
    watcher.block_until_worker_exit()


def test_the_worker_that_is_to_go(peers: Peers) -> None:
    watcher = jd.experimental.PreemptionWatcher()
    assert watcher.preemption_message is None
    watcher.block_until_worker_exit()
    peers.store[agreement.KEY] = json.dumps([1, "got SIGTERM"])
    assert watcher.preemption_message == "worker 1 got SIGTERM"
    with pytest.raises(DeadlineError, match=r"waited 0\.01 s for worker 1, which got SIGTERM, to end\. HINT"):
        watcher.block_until_worker_exit(timeout_s=0.01)
    threading.Timer(0.02, lambda: peers.watch.left.update({1: "its last step"})).start()
    watcher.block_until_worker_exit(timeout_s=20)
    peers.store[agreement.KEY] = json.dumps([0, "got SIGTERM"])
    watcher.block_until_worker_exit(timeout_s=0)


def listen(peers: Peers, watcher: Any = None) -> tuple[Any, list[str], threading.Event]:
    whom: list[str] = []
    heard = threading.Event()

    def hear(text: str) -> None:
        whom.append(text)
        heard.set()

    anyone: Any = peers
    return NoticeListener(anyone, watcher, hear), whom, heard


def test_a_notice_of_another_worker_is_heard(peers: Peers) -> None:
    listening, whom, heard = listen(peers)
    peers.store[agreement.KEY] = json.dumps([1, "got SIGTERM"])
    assert heard.wait(20)
    assert whom == ["worker 1 got SIGTERM"]
    listening.close()
    listening.close()


def test_the_first_notice_counts_and_is_spread(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_ASK_S", 0.0)
    listening, whom, heard = listen(peers, lambda: True)
    assert heard.wait(20)
    assert json.loads(peers.store[agreement.KEY]) == [0, "is about to be taken away"]
    assert whom == ["worker 0 is about to be taken away"]
    listening.close()


@pytest.mark.parametrize("error", [ClusterError("gone"), RuntimeError("UNAVAILABLE")])
def test_a_cluster_that_fails_ends_the_listening(peers: Peers, error: Exception) -> None:
    peers.error = error
    listening, whom, heard = listen(peers)
    listening._thread.join(20)
    assert not heard.is_set()
    assert whom == []
    listening.close()
