"""Pulses, failures and deadlines over a store in memory, with real threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxtribute._src.core.cluster import watch as watching_module
from jaxtribute._src.core.cluster.failures import Failure
from jaxtribute._src.core.cluster.roster import Roster
from jaxtribute._src.core.cluster.step_log import StepLog
from jaxtribute._src.core.cluster.watch import ROOT, Watch


class Store:
    """The coordination service's store, which can be cut off."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.cut = False
        self._lock = threading.Lock()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False, /) -> None:
        with self._lock:
            self._check()
            assert allow_overwrite
            self.values[key] = value

    def key_value_dir_get(self, key: str, /) -> list[tuple[str, str]]:
        with self._lock:
            self._check()
            return [(name, value) for name, value in self.values.items() if name.startswith(key)]

    def _check(self) -> None:
        if self.cut:
            raise RuntimeError("UNAVAILABLE: no route to host\nmore")


def roster(rank: int, workers: int = 2) -> Roster:
    return Roster.of({"worker": [f"10.0.0.{i}:1" for i in range(workers)]}, "worker", rank)


@contextmanager
def watching(
    store: Store, rank: int, silence_s: float = 60.0, steps: StepLog | None = None, workers: int = 2
) -> Generator[tuple[Watch, list[Failure]]]:
    found: list[Failure] = []
    watch = Watch(store, roster(rank, workers), silence_s, found.append, steps or StepLog())
    watch.start()
    try:
        yield watch, found
    finally:
        watch.stop()


def until(condition: Callable[[], Any], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_workers_learn_what_the_others_do() -> None:
    store, log = Store(), StepLog()
    log.entering("train_step")
    with watching(store, 0) as (first, _), watching(store, 1, steps=log):
        until(lambda: first.pulses.report(1))
        assert first.pulses.report(1)["told"] == "step 1 of train_step"
        assert first.pulses.report(1)["step"] == 1
        assert first.pulses.report(7) == {}


def test_a_failure_reaches_the_others_once() -> None:
    store = Store()
    with watching(store, 0) as (first, seen), watching(store, 1) as (second, own):
        second.publish(Failure.raised(1, ValueError("broken")))
        until(lambda: seen)
        assert seen[0].message(roster(0).names) == "worker 1 (10.0.0.1:1) raised ValueError: broken"
        assert "ValueError: broken" in seen[0].details
        assert first.failure == seen[0]
        first.publish(Failure.raised(0, ValueError("later")))
        assert first.failure == seen[0]
        assert own == []


def test_the_cause_goes_before_its_consequences() -> None:
    store = Store()
    cause = Failure.raised(2, ValueError("first"))
    store.key_value_set(f"{ROOT}/failure/1", Failure(2, "was lost", "", 1).encode(), True)
    store.key_value_set(f"{ROOT}/failure/2", cause.encode(), True)
    with watching(store, 0, workers=3) as (_, seen):
        until(lambda: seen)
        assert seen[0] == cause


def test_a_worker_without_a_pulse_is_lost() -> None:
    store = Store()
    with watching(store, 0, silence_s=1.0) as (_, seen):
        until(lambda: seen)
        assert seen[0].rank == 1
        assert "no pulse" in seen[0].summary


@pytest.mark.parametrize("cut", [False, True])
def test_the_service_is_asked_twice_a_second_at_most(cut: bool) -> None:
    store, asked = Store(), list[float]()

    class Counting(Store):
        def key_value_set(self, key: str, value: str, allow_overwrite: bool = False, /) -> None:
            asked.append(time.monotonic())
            store.key_value_set(key, value, allow_overwrite)

    store.cut = cut
    with watching(Counting(), 0):
        until(lambda: len(asked) >= 3)
    assert asked[2] - asked[0] > 0.9


def test_a_worker_that_has_left_is_not_lost() -> None:
    store = Store()
    with watching(store, 1) as (second, _):
        second.leave()
    with watching(store, 0, silence_s=1.0) as (first, seen):
        until(lambda: first.left)
        start = time.monotonic()
        until(lambda: time.monotonic() - start > 2.0)
        assert seen == []
        assert first.left == {1: "no step"}


@pytest.mark.parametrize("taken", [True, False])
def test_a_step_that_a_worker_has_not_taken_before_it_left_is_an_error(
    monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    monkeypatch.setattr(watching_module, "_WITHOUT_S", 0.2)
    store, here, there = Store(), StepLog(), StepLog()
    for log, steps in ((here, 3), (there, 3 if taken else 2)):
        for _ in range(steps):
            log.entering("train_step")
    with watching(store, 1, steps=there) as (second, _):
        second.leave()
    with watching(store, 0, steps=here) as (first, seen):
        until(lambda: first.left)
        if taken:
            start = time.monotonic()
            until(lambda: time.monotonic() - start > 2.0)
            assert seen == []
            return
        until(lambda: seen)
    assert seen[0].rank == 1
    assert "ended its program after step 2 of train_step, while worker 0" in seen[0].summary
    assert "step 3 of train_step" in seen[0].summary
    assert seen[0].details.startswith("HINT")


def test_a_service_that_is_cut_off_is_the_coordinators_end() -> None:
    store = Store()
    with watching(store, 1, silence_s=1.0) as (_, seen):
        store.cut = True
        until(lambda: seen)
        assert seen[0].rank == 0


class Stuck:
    """A result that never comes."""

    def is_deleted(self) -> bool:
        return False

    def is_ready(self) -> bool:
        return False


def test_a_step_past_its_deadline_names_the_worker_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    store, ahead, behind = Store(), StepLog(), StepLog()
    for _ in range(3):
        ahead.entering("train_step")
    behind.entering("train_step")
    with watching(store, 1, steps=behind), watching(store, 0, steps=ahead) as (first, seen):
        until(lambda: first.pulses.report(1))
        monkeypatch.setattr(jax.tree, "leaves", lambda tree: [])  # the log keeps arrays only
        ahead.dispatched(None)
        ahead._flights.append(  # pyright: ignore[reportPrivateUsage]
            SimpleNamespace(number=3, name="train_step", start=time.monotonic(), result=Stuck(), landed=lambda: False)  # type: ignore[arg-type]
        )
        first.deadline_s = 0.5
        until(lambda: seen)
    assert seen[0].rank == 1
    assert "holds up step 3 of train_step" in seen[0].summary
    assert "worker 1 (10.0.0.1:1): last seen in step 1 of train_step" in seen[0].details
    assert "test_watch.py" in seen[0].details  # the stack of the main thread


def test_a_broken_collective_is_blamed_on_the_worker_that_is_gone() -> None:
    store = Store()
    with watching(store, 0, silence_s=60.0) as (first, _):
        cause = first.cause(ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer"))
    assert cause.rank == 1
    assert "was lost" in cause.summary


def test_any_other_error_is_ones_own() -> None:
    store = Store()
    with watching(store, 0) as (first, _):
        assert first.cause(KeyError("mine")).rank == 0


def test_the_coordinator_departs_last() -> None:
    store = Store()
    with watching(store, 0) as (first, _), watching(store, 1) as (second, _):
        until(lambda: first.pulses.report(1))
        thread = threading.Thread(target=first.depart)
        thread.start()
        until(lambda: f"{ROOT}/gone/0" in store.values)
        assert thread.is_alive()
        second.depart()
        thread.join(120)
        assert not thread.is_alive()
