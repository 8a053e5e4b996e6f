"""Who is to go, as any worker may ask, and notices between workers."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute._src.checkpoint import committing
from jaxtribute._src.checkpoint.preemption import notice
from jaxtribute._src.checkpoint.preemption.notice import Notice
from jaxtribute.errors import ClusterError, DeadlineError


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
    monkeypatch.setattr(committing, "cluster", lambda: found)
    return found


def test_a_process_alone_has_nobody_to_watch() -> None:
    watcher = jd.experimental.PreemptionWatcher()
    assert watcher.preemption_message is None
    watcher.block_until_worker_exit()


def test_the_worker_that_is_to_go(peers: Peers) -> None:
    watcher = jd.experimental.PreemptionWatcher()
    assert watcher.preemption_message is None
    watcher.block_until_worker_exit()
    peers.store[notice.KEY] = json.dumps([1, "got SIGTERM"])
    assert watcher.preemption_message == "worker 1 got SIGTERM"
    with pytest.raises(DeadlineError, match=r"waited 0\.01 s for worker 1, which got SIGTERM, to end\. HINT"):
        watcher.block_until_worker_exit(timeout_s=0.01)
    threading.Timer(0.02, lambda: peers.watch.left.update({1: "its last step"})).start()
    watcher.block_until_worker_exit(timeout_s=20)
    peers.store[notice.KEY] = json.dumps([0, "got SIGTERM"])
    watcher.block_until_worker_exit(timeout_s=0)


def listen(peers: Peers, watcher: Any = None) -> tuple[Any, list[str], threading.Event]:
    whom: list[str] = []
    heard = threading.Event()

    def hear(text: str) -> None:
        whom.append(text)
        heard.set()

    anyone: Any = peers
    return Notice(anyone, watcher, hear), whom, heard


def test_a_notice_of_another_worker_is_heard(peers: Peers) -> None:
    listening, whom, heard = listen(peers)
    peers.store[notice.KEY] = json.dumps([1, "got SIGTERM"])
    assert heard.wait(20)
    assert whom == ["worker 1 got SIGTERM"]
    listening.close()
    listening.close()


def test_the_first_notice_counts_and_is_spread(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "_ASK_S", 0.0)
    listening, whom, heard = listen(peers, lambda: True)
    assert heard.wait(20)
    assert json.loads(peers.store[notice.KEY]) == [0, "is about to be taken away"]
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
