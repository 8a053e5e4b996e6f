import threading
from collections.abc import Callable

import pytest

from jaxtribute._src.core.execution import rendezvous
from jaxtribute._src.core.execution.rendezvous import Workers


def run_and_wait(pool: Workers, job: Callable[[], None]) -> None:
    done = threading.Event()

    def work() -> None:
        job()
        done.set()

    pool.submit(work)
    assert done.wait(30)


def wait_until_idle(pool: Workers, count: int) -> None:
    """Jobs are done a moment before their thread is idle again."""
    tick = threading.Event()
    for _ in range(3000):
        if len(pool._idle) == count:  # pyright: ignore[reportPrivateUsage]
            return
        tick.wait(0.001)
    raise AssertionError("the threads never became idle")


def test_a_job_runs_in_another_named_daemon_thread() -> None:
    seen: list[threading.Thread] = []
    run_and_wait(Workers("pool"), lambda: seen.append(threading.current_thread()))
    assert seen[0] is not threading.current_thread()
    assert seen[0].name == "pool"
    assert seen[0].daemon


def test_an_idle_thread_takes_the_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "IDLE_SECONDS", 5.0)
    pool = Workers("pool")
    seen: list[int] = []
    for _ in range(3):
        run_and_wait(pool, lambda: seen.append(threading.get_ident()))
        wait_until_idle(pool, 1)
    assert len(set(seen)) == 1
    monkeypatch.setattr(rendezvous, "IDLE_SECONDS", 0.0)
    run_and_wait(pool, lambda: None)
    wait_until_idle(pool, 0)


def test_busy_threads_are_not_waited_for() -> None:
    pool = Workers("pool")
    first, second = threading.Event(), threading.Event()
    results: list[bool] = []

    def one() -> None:
        results.append(second.wait(30))
        first.set()

    pool.submit(one)
    run_and_wait(pool, second.set)
    assert first.wait(30)
    assert results == [True]


def test_threads_end_when_no_job_comes() -> None:
    pool = Workers("pool")
    seen: list[threading.Thread] = []
    run_and_wait(pool, lambda: seen.append(threading.current_thread()))
    seen[0].join(30)
    assert not seen[0].is_alive()
    wait_until_idle(pool, 0)


def test_many_jobs_all_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "IDLE_SECONDS", 0.0005)
    pool = Workers("pool")
    done = threading.Semaphore(0)
    for _ in range(200):  # many arrive just as a thread is about to end
        pool.submit(done.release)
        assert done.acquire(timeout=30)
