import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtribute._src.core.execution import rendezvous
from jaxtribute._src.core.execution.rendezvous import Rendezvous
from jaxtribute.errors import ContextError

Body = Callable[["Replica"], Any]


class Replica:
    """What a test's replica function sees."""

    def __init__(self, meeting: Rendezvous, index: int) -> None:
        self.meeting, self.index = meeting, index

    def total(self, value: int, name: str = "total") -> int:
        return self.meeting.meet(self.index, name, value, lambda values: [sum(values)] * len(values))

    def swap(self, value: Any) -> Any:
        return self.meeting.meet(self.index, "swap", value, lambda values: list(reversed(values)))


def run(*bodies: Body) -> list[Any]:
    box: list[Rendezvous] = []

    def call(index: int, body: Body) -> Any:
        return body(Replica(box[0], index))

    box.append(Rendezvous([partial(call, index, body) for index, body in enumerate(bodies)]))
    return box[0].run()


def test_results_are_in_replica_order() -> None:
    assert run(*[lambda r: r.index * 10] * 4) == [0, 10, 20, 30]


def test_without_meetings_the_callers_thread_does_it_all() -> None:
    assert set(run(*[lambda _: threading.get_ident()] * 4)) == {threading.get_ident()}


def test_meetings_see_every_payload_in_order() -> None:
    assert run(*[lambda r: r.total(r.index + 1)] * 4) == [10] * 4
    assert run(*[lambda r: r.swap(r.index)] * 3) == [2, 1, 0]


@settings(max_examples=20)
@given(replicas=st.integers(1, 5), meetings=st.integers(0, 6))
def test_any_number_of_replicas_and_meetings(replicas: int, meetings: int) -> None:
    def body(r: Replica) -> list[int]:
        return [r.total(r.index + i) for i in range(meetings)]

    expected = [replicas * (replicas - 1) // 2 + replicas * i for i in range(meetings)]
    assert run(*[body] * replicas) == [expected] * replicas


def test_one_replica_runs_at_a_time_in_replica_order() -> None:
    log: list[tuple[str, int]] = []
    running = threading.Lock()

    def body(r: Replica) -> None:
        for part in "ab":
            assert running.acquire(blocking=False)
            log.append((part, r.index))
            running.release()
            r.total(0)

    run(*[body] * 3)
    assert log == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]


def test_the_merge_runs_once() -> None:
    calls: list[Sequence[Any]] = []

    def body(r: Replica) -> Any:
        def merge(values: list[Any]) -> list[Any]:
            calls.append(values)
            return values

        return r.meeting.meet(r.index, "m", r.index, merge)

    assert run(body, body, body) == [0, 1, 2]
    assert calls == [[0, 1, 2]]


def test_different_meetings_name_both_lines() -> None:
    def one(r: Replica) -> None:
        r.total(1, "sum of gradients")

    def two(r: Replica) -> None:
        r.total(1, "gather")

    with pytest.raises(ContextError) as failure:
        run(one, two, one)
    text = str(failure.value)
    first, second = one.__code__.co_firstlineno + 1, two.__code__.co_firstlineno + 1
    assert "replica 0 calls sum of gradients at" in text
    assert "replica 1 calls gather at" in text
    assert "HINT" in text
    assert text.count(__file__.rsplit("/", 1)[-1]) == 3
    assert first != second


@pytest.mark.parametrize("early", [0, 1, 2])
def test_a_replica_that_ends_before_a_meeting(early: int) -> None:
    def body(r: Replica) -> None:
        r.total(1)
        if r.index != early:
            r.total(1)

    with pytest.raises(ContextError, match=rf"(?s)do not meet.*replica {early} has ended.*HINT"):
        run(body, body, body)


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 1])
def test_an_exception_in_one_replica_is_the_callers(
    kind: type[BaseException], failing: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "REST_SECONDS", 600.0)  # only an interrupt waits for other threads
    reached: list[int] = []

    def body(r: Replica) -> None:
        for step in range(2):
            if (r.index, step) == (failing, after):
                raise kind("cause")
            r.total(1)
        reached.append(r.index)

    with pytest.raises(kind) as failure:
        run(body, body, body)
    assert failure.value.args == ("cause",)
    assert f"(raised by replica {failing} of 3)" in failure.value.__notes__
    assert reached == []


def test_an_exception_in_the_merge_is_the_callers() -> None:
    def body(r: Replica) -> None:
        def merge(values: list[Any]) -> list[Any]:
            raise KeyError(len(values))

        r.meeting.meet(r.index, "m", None, merge)

    with pytest.raises(KeyError, match="2"):
        run(body, body)


def test_waiting_replicas_clean_up_when_another_fails() -> None:
    log: list[str] = []

    def waits(r: Replica) -> None:
        try:
            r.total(1)
        finally:
            log.append(f"cleaned {r.index}")

    def fails(r: Replica) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        run(waits, waits, fails)
    assert sorted(log) == ["cleaned 0", "cleaned 1"]


def test_later_replicas_do_not_start_after_a_failure() -> None:
    started: list[int] = []

    def body(r: Replica) -> None:
        started.append(r.index)
        raise KeyError

    with pytest.raises(KeyError):
        run(body, body)
    assert started == [0]


def test_a_meeting_while_cleaning_up_does_not_hang() -> None:
    def body(r: Replica) -> None:
        try:
            if r.index == 1:
                raise KeyError
            r.total(1)
        finally:
            r.total(1)

    with pytest.raises((KeyError, ContextError)):
        run(body, body, body)


def test_an_interrupt_of_the_caller_leaves_nobody_waiting() -> None:
    threads: list[threading.Thread] = []

    def body(r: Replica) -> None:
        threads.append(threading.current_thread())
        if r.index == 2:
            raise KeyboardInterrupt
        r.total(1)

    with pytest.raises(KeyboardInterrupt):
        run(body, body, body)
    for thread in set(threads) - {threading.current_thread()}:
        thread.join(30)
        assert not thread.is_alive()


def test_an_interrupt_while_the_caller_waits_ends_who_waits_for_a_replica_that_hangs() -> None:
    ended: list[int] = []
    hangs, go_on = threading.Event(), threading.Event()

    def body(r: Replica) -> None:
        try:
            r.total(1)
            if r.index == 1:
                hangs.set()
                assert go_on.wait(30)
        finally:
            ended.append(r.index)

    def interrupted() -> None:
        assert hangs.wait(30)
        raise KeyboardInterrupt

    box: list[Rendezvous] = []
    box.append(Rendezvous([lambda index=index: body(Replica(box[0], index)) for index in range(3)]))
    waiting: Any = SimpleNamespace(take=interrupted, give=lambda: None)
    box[0]._finished = waiting  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(KeyboardInterrupt):
        box[0].run()
    await_all(ended, [0, 2])
    go_on.set()
    await_all(ended, [0, 1, 2])


def await_all(ended: list[int], expected: list[int]) -> None:
    deadline = time.monotonic() + 20
    while sorted(ended) != expected:
        assert time.monotonic() < deadline, ended
        time.sleep(0.001)


def test_runs_nest() -> None:
    def inner() -> list[int]:
        return run(*[lambda r: r.total(r.index)] * 3)

    def body(r: Replica) -> Any:
        before = inner()
        met = r.meeting.meet(r.index, "m", None, lambda values: [inner()] * len(values))
        return before, met

    assert run(body, body) == [([3, 3, 3], [3, 3, 3])] * 2


def test_runs_in_different_threads_do_not_mix() -> None:
    results: dict[int, Any] = {}
    barrier = threading.Barrier(3, timeout=30)

    def work(key: int) -> None:
        barrier.wait()
        results[key] = [run(*[lambda r: r.total(r.index + key)] * 3) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(key,)) for key in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {key: [[3 + 3 * key] * 3] * 10 for key in range(3)}
