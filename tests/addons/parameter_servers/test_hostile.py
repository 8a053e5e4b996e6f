"""Functions with results, errors and arguments as bad as they come: those who wait are told, the cluster goes on."""

import contextlib
import functools
import os
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.parameter_servers.scheduling import closures
from jaxtribute.errors import ArgumentError, ArgumentTypeError, CancelledError, ClusterError, DeadlineError
from parameter_servers import clusters, hostile
from parameter_servers.clusters import coordinated, engine_of

ODD = os.fsdecode(b"caf\xe9.txt")
"""The name of a file that is not UTF-8: a string with a lone surrogate."""


@pytest.fixture(scope="module")
def coordinator() -> Any:
    with coordinated(workers=2) as made:
        yield made


def still_works(coordinator: jd.coordinator.ClusterCoordinator) -> bool:
    """True if each worker still runs what is scheduled."""
    coordinator.join()
    return coordinator.fetch([coordinator.schedule(lambda i: i, args=(i,)) for i in range(4)]) == [0, 1, 2, 3]


def test_text_that_is_not_utf8_travels(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    assert coordinator.schedule(lambda: [ODD, {ODD: 1}]).fetch() == [ODD, {ODD: 1}]
    assert coordinator.schedule(lambda x: x, args=(ODD,)).fetch() == ODD

    def fail() -> None:
        raise FileNotFoundError(ODD)

    with pytest.raises(FileNotFoundError) as caught:
        coordinator.schedule(fail).fetch()
    assert caught.value.args == (ODD,)
    with pytest.raises(FileNotFoundError):
        coordinator.join()
    assert still_works(coordinator)


@pytest.mark.parametrize("kind", sorted(hostile.RESULTS))
def test_a_result_comes_back_or_an_error_says_why(coordinator: jd.coordinator.ClusterCoordinator, kind: str) -> None:
    make, check = hostile.RESULTS[kind]
    outcome = hostile.outcome_of(coordinator, make)
    assert outcome.verdict(check) == "well", outcome
    assert still_works(coordinator)


@pytest.mark.parametrize("kind", sorted(hostile.ERRORS))
def test_an_error_is_told_as_what_it_is(coordinator: jd.coordinator.ClusterCoordinator, kind: str) -> None:
    make = hostile.ERRORS[kind]

    def fail() -> None:
        raise make()

    outcome = hostile.outcome_of(coordinator, fail)
    assert isinstance(outcome.error, Exception), outcome
    assert not isinstance(outcome.error, CancelledError)
    assert still_works(coordinator)


@pytest.mark.parametrize("kind", sorted(hostile.ARGUMENTS))
def test_an_argument_arrives_or_is_refused(coordinator: jd.coordinator.ClusterCoordinator, kind: str) -> None:
    make, check = hostile.ARGUMENTS[kind]
    outcome = hostile.outcome_of(coordinator, lambda x: x, make)
    assert outcome.verdict(check) == "well", outcome
    assert still_works(coordinator)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (5, None, "args is of type int"),
        (np.ones(2), None, "ndarray"),
        ((), [1], "kwargs is of type list"),
        ((), {1: 2}, "kwargs is of type dict"),
        (({1: 2, "a": 3},), None, "cannot be taken apart"),
    ],
)
def test_what_are_no_arguments_is_refused(
    coordinator: jd.coordinator.ClusterCoordinator, args: Any, kwargs: Any, words: str
) -> None:
    with pytest.raises(ArgumentTypeError, match=f"(?s){words}.*HINT"):
        coordinator.schedule(lambda *_, **__: None, args, kwargs)
    for wrong in (0, -1, float("nan"), float("inf"), "1", True):
        with pytest.raises(ArgumentError, match=r"timeout_s is .*HINT"):
            coordinator.schedule(lambda: None, timeout_s=wrong)  # pyright: ignore[reportArgumentType]
    for wrong in (0, 1.5, True):
        with pytest.raises(ArgumentError, match=r"max_attempts is .*HINT"):
            jd.coordinator.ClusterCoordinator(coordinator.strategy, max_attempts=wrong)  # pyright: ignore[reportArgumentType]


def test_an_array_whose_mask_or_text_changes_is_seen_as_it_is(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    masked, words = np.ma.array([1.0, 2.0], mask=[False, False]), np.array(["a", "b"])
    for _ in range(2):
        assert coordinator.schedule(lambda m: float(m.sum()), args=(masked,)).fetch() == float(masked.sum())
        assert coordinator.schedule("".join, args=(words,)).fetch() == "".join(words)
        masked[0], words[0] = np.ma.masked, "z"


def test_results_that_jax_cannot_hold_are_refused_by_get(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    result = coordinator.schedule(lambda: np.array([2**40, 1]))
    assert result.fetch()[0] == 2**40
    with pytest.raises(ArgumentError, match=r"int64 .*1099511627776.*HINT"):
        result.get()
    assert int(coordinator.schedule(lambda: np.int64(7)).get()) == 7


def test_generated_cases_never_hang_and_are_never_wrong() -> None:
    assert hostile.generated(count=120, seed=1) == {"well": 120}


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), OSError(2, "no such file", ODD)])
def test_code_that_servers_run_ends_no_server(
    coordinator: jd.coordinator.ClusterCoordinator, error: BaseException
) -> None:
    def bad(shape: Any, dtype: Any = None, shard_info: Any = None) -> Any:
        raise error

    with coordinator.strategy.scope():
        with pytest.raises(ClusterError, match=f"could not do what was asked: {type(error).__name__}"):
            jd.Variable(functools.partial(bad, shape=(4, 2)), dtype=np.float32)
        assert int(jd.Variable(3)) == 3


def test_a_result_that_went_with_its_process_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with coordinated() as coordinator:
        engine = engine_of(coordinator)
        asked: list[int] = []
        take = engine.take

        def lose_two(index: int, closure: int) -> bytes | None:
            asked.append(closure)
            blob = take(index, closure)
            return None if len(asked) <= 2 else blob

        worker = coordinator._queue.workers[0]  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(worker, "take", lambda closure: lose_two(0, closure))
        assert coordinator.schedule(lambda: {1, 2}).fetch() == {1, 2}
        assert len(asked) == 3
        monkeypatch.setattr(worker, "take", lambda _: None)
        with pytest.raises(ClusterError, match="does not run again: 3 processes"):
            coordinator.schedule(lambda: {1, 2}).fetch()


def test_a_function_that_ends_its_process_again_and_again_fails(caplog: pytest.LogCaptureFixture) -> None:
    with coordinated(workers=2) as coordinator:
        engine = engine_of(coordinator)
        gate = clusters.SHARED["gate"] = threading.Event()
        entered = clusters.SHARED["entered"] = threading.Semaphore(0)

        def deadly() -> None:
            clusters.SHARED["entered"].release()
            clusters.SHARED["gate"].wait(20)

        bad = coordinator.schedule(deadly)
        for _ in range(3):
            assert entered.acquire(timeout=20)
            index = next(i for i, worker in coordinator._queue.workers.items() if worker.running)  # pyright: ignore[reportPrivateUsage]
            engine.renew(index)
        gate.set()
        with pytest.raises(ClusterError, match=r"deadly does not run again: 3 processes.*HINT.*max_attempts"):
            bad.fetch()
        with pytest.raises(ClusterError, match="deadly"):
            coordinator.join()
        assert still_works(coordinator)
    assert "1 of at most 3 times" in caplog.text


def test_a_function_that_takes_too_long_fails_and_another_worker_takes_its_place() -> None:
    with coordinated() as coordinator:
        gate = clusters.SHARED["gate"] = threading.Event()

        def stuck_here() -> None:
            clusters.SHARED["gate"].wait(60)

        stuck = coordinator.schedule(stuck_here, timeout_s=0.2)
        behind = coordinator.schedule(lambda: 1)
        with pytest.raises(
            DeadlineError, match=r"stuck_here has run for .* on worker 0.*timeout_s=0.2.*HINT"
        ) as caught:
            stuck.fetch()
        assert "in stuck_here" in caught.value.__notes__[0]
        with pytest.raises(CancelledError, match="as another"):
            behind.fetch()
        with pytest.raises(DeadlineError):
            coordinator.join()
        assert coordinator.schedule(lambda: 1, timeout_s=30).fetch() == 1
        gate.set()


def test_a_function_that_runs_for_long_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(closures, "WARN_S", 0.01)
    with coordinated() as coordinator:
        gate = clusters.SHARED["gate"] = threading.Event()

        def slow_here() -> None:
            clusters.SHARED["gate"].wait(60)

        slow = coordinator.schedule(slow_here)
        deadline = time.monotonic() + 20
        while "worker 0 has run" not in caplog.text:
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        gate.set()
        assert slow.fetch() is None
    assert "slow_here for" in caplog.text
    assert "in slow_here" in caplog.text


def test_if_the_coordinators_thread_ends_all_who_wait_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with coordinated() as coordinator:
        gate = clusters.SHARED["gate"] = threading.Event()
        began = clusters.SHARED["began"] = threading.Event()
        waiting = coordinator.schedule(lambda: clusters.SHARED["began"].set() or clusters.SHARED["gate"].wait(20))
        assert began.wait(20)
        dispatcher = coordinator._cluster.dispatcher  # pyright: ignore[reportPrivateUsage]

        def fall(_: Any) -> None:
            raise SystemExit("odd")

        monkeypatch.setattr(dispatcher, "_turn", fall)
        dispatcher.announce()
        with pytest.raises(CancelledError, match="state that it worked on"):
            waiting.fetch()
        for _ in range(2):
            with pytest.raises(ClusterError, match=r"thread has ended: SystemExit: odd.*HINT"):
                coordinator.schedule(lambda: 1)
        with pytest.raises(ClusterError, match="thread has ended"):
            coordinator.join()
        with pytest.raises(ClusterError, match="thread has ended"):
            coordinator.done()
        gate.set()


def test_a_worker_whose_thread_ends_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with coordinated() as coordinator:
        task = engine_of(coordinator).task("worker", 0)
        monkeypatch.setattr(task, "_run", lambda *_: sys.exit(3))
        assert coordinator.schedule(lambda: 5).fetch() == 5
        assert engine_of(coordinator).task("worker", 0) is not task


def test_if_a_servers_thread_ends_all_who_wait_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with coordinated() as coordinator:
        with coordinator.strategy.scope():
            count = jd.Variable(0, name="count")
        step = jd.function(lambda: count.assign_add(1))
        coordinator.schedule(step).fetch()
        coordinator.save()
        monkeypatch.setattr(engine_of(coordinator).task("ps", 0), "_answer", lambda _: sys.exit(3))
        begun = time.monotonic()
        coordinator.schedule(step)
        with pytest.raises(ClusterError, match=r"parameter server 0 has ended.*HINT"):
            coordinator.join()
        assert time.monotonic() - begun < 15
        coordinator.restore()
        assert int(count) == 1


def test_a_closed_cluster_says_so() -> None:
    with coordinated() as coordinator:
        gate = clusters.SHARED["gate"] = threading.Event()
        waiting = [coordinator.schedule(lambda: clusters.SHARED["gate"].wait(20)) for _ in range(2)]
        gate.set()
        waiting[0].fetch()
    with pytest.raises(ClusterError, match=r"has been closed.*HINT"):
        coordinator.schedule(lambda: 1)
    with contextlib.suppress(CancelledError):
        assert waiting[1].fetch()
