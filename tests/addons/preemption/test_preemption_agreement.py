"""Workers that learn of a preemption at different moments save at one place, each once."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtribute._src.addons.preemption.agreement import Rounds
from jaxtribute.errors import ClusterError, DeadlineError

PLACES = 12


class Peers:
    """One worker's view of a cluster whose store is a dict."""

    def __init__(self, store: dict[str, str], rank: int, workers: int) -> None:
        self._store = store
        self.rank, self.workers = rank, workers
        self.names = tuple(f"worker {i}" for i in range(workers))
        self.watch = SimpleNamespace(left={}, failure=None)
        self.roster = SimpleNamespace(named=lambda ranks: ", ".join(self.names[rank] for rank in ranks))
        self.failure: Exception | None = None
        self.timeout_s = 20.0

    def patience(self) -> float:
        return self.timeout_s

    def set(self, key: str, value: str) -> None:
        self._store[key] = value

    def by_rank(self, place: str) -> dict[int, str]:
        keys = dict(self._store).items()
        return {int(key.rpartition("/")[2]): value for key, value in keys if key.startswith(f"{place}/")}

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure


def rounds(peers: Peers | None) -> Rounds:
    anyone: Any = peers
    return Rounds(anyone)


@settings(max_examples=25)
@given(st.integers(2, 5), st.integers(0, 2**32))
def test_all_save_at_one_place_whatever_their_pace(workers: int, seed: int) -> None:
    store: dict[str, str] = {}
    found: list[list[int]] = [[] for _ in range(workers)]

    def work(rank: int) -> None:
        rng = random.Random(f"{seed}/{rank}")
        mine = rounds(Peers(store, rank, workers))
        learner = threading.Timer(rng.uniform(0, 0.01), mine.learn)
        learner.start()
        for place in range(PLACES):
            if mine.due():
                found[rank].append(place)
            time.sleep(rng.uniform(0, 0.002))
        learner.join()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Where some had passed all places before they learned of it, nobody saves.
    assert all(one == found[0] for one in found)
    assert len(found[0]) <= 1


def test_a_process_alone_saves_at_the_next_place() -> None:
    alone = rounds(None)
    assert [alone.due(), alone.due()] == [False, False]
    alone.learn()
    assert [alone.due(), alone.due(), alone.due()] == [True, False, False]


def test_a_second_save_later_and_then_none() -> None:
    alone = rounds(None)
    alone.postpone(3)
    alone.learn()
    assert alone.due()
    alone.postpone(2)
    assert [alone.due(), alone.due()] == [False, True]
    alone.postpone(1)
    alone.finish()
    assert not alone.due()


def test_a_worker_that_says_nothing_is_named() -> None:
    peers = Peers({}, 0, 3)
    peers.timeout_s = 0.02
    mine = rounds(peers)
    mine.learn()
    with pytest.raises(DeadlineError, match=r"worker 0 waited 0\.02 s for worker 1, worker 2, to agree .* HINT"):
        mine.due()


def test_a_worker_that_fails_ends_the_wait() -> None:
    peers = Peers({}, 0, 2)
    mine = rounds(peers)
    mine.learn()
    peers.failure = ClusterError("worker 1 was lost")
    with pytest.raises(ClusterError, match="worker 1 was lost"):
        mine.due()


def test_nobody_saves_after_a_worker_has_ended() -> None:
    peers = Peers({}, 0, 2)
    peers.watch.left[1] = "its last step"
    mine = rounds(peers)
    mine.learn()
    assert [mine.due(), mine.due()] == [False, False]
