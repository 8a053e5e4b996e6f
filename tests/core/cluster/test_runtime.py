"""Joining a cluster and waiting in it: what goes wrong, without other processes; see also `tests/multiprocess`."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import jax
import pytest

from jaxtribute._src.core.cluster import runtime, told, watch
from jaxtribute._src.core.cluster.failures import Failure
from jaxtribute._src.core.cluster.roster import Roster
from jaxtribute._src.core.cluster.step_log import StepLog
from jaxtribute.errors import ClusterError, ClusterSpecError, ConfigError, DeadlineError

JOBS = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}


class Store:
    """JAX's client of the coordination service, in memory."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._changed = threading.Condition()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000):
                raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.values[key]

    def key_value_try_get(self, key: str) -> str:
        if key not in self.values:
            raise jax.errors.JaxRuntimeError(f"NOT_FOUND: {key}")
        return self.values[key]

    def key_value_delete(self, key: str) -> None:
        self.values = {name: value for name, value in self.values.items() if not name.startswith(key)}

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        return [(name, value) for name, value in self.values.items() if name.startswith(key)]


def cluster(store: Any, rank: int = 0, timeout_s: float = 5.0) -> runtime.Cluster:
    """One of two workers, which nothing watches."""
    return runtime.Cluster(Roster.of(JOBS, "worker", rank), store, 60.0, timeout_s)


def both(store: Store, work: Any) -> list[Any]:
    """What `work` returns or raises on each of two workers."""
    results: list[Any] = [None, None]

    def run(rank: int) -> None:
        try:
            results[rank] = work(cluster(store, rank))
        except (ClusterError, DeadlineError) as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def test_barriers_can_be_used_again() -> None:
    store = Store()

    def work(one: runtime.Cluster) -> None:
        for _ in range(3):
            one.barrier("epoch", timeout_s=10)

    assert both(store, work) == [None, None]
    assert len([key for key in store.values if "/barrier/" in key]) <= 4, "old keys are deleted"


def test_a_barrier_names_those_who_do_not_come() -> None:
    with pytest.raises(
        DeadlineError, match=r"worker 0 .* at the barrier 'epoch' for worker 1 \(127\.0\.0\.1:2\).*HINT"
    ):
        cluster(Store()).barrier("epoch", timeout_s=0.05)


def test_everyone_gets_everyones_text() -> None:
    store = Store()
    results = both(store, lambda one: [one.exchange("greeting", f"from {one.rank}") for _ in range(3)])
    assert results == [[["from 0", "from 1"]] * 3] * 2
    assert len([key for key in store.values if "/exchange/" in key]) <= 4, "old keys are deleted"


def test_how_long_workers_wait_for_each_other() -> None:
    one = cluster(Store())
    assert one.patience() == 5.0
    assert one.patience(7.0) == 7.0
    one.timeout_s = float("inf")
    assert one.patience() == 600.0


def test_workers_at_different_calls_are_told_of_both() -> None:
    for error in both(Store(), lambda one: one.exchange(f"call {one.rank}", "")):
        assert isinstance(error, ClusterError)
        assert f"worker 0 (127.0.0.1:1): call 0, at {__file__}" in str(error)
        assert f"worker 1 (127.0.0.1:2): call 1, at {__file__}" in str(error)


def test_who_does_not_answer_is_named() -> None:
    with pytest.raises(DeadlineError, match=r"worker 0 .* waits at greeting.*for worker 1 \(127\.0\.0\.1:2\).*HINT"):
        cluster(Store(), timeout_s=0.05).exchange("greeting", "")


def test_who_has_ended_is_not_waited_for() -> None:
    one = cluster(Store())
    one.watch.left = {1: "step 7 of train_step"}
    with pytest.raises(ClusterError, match=r"worker 1 .* has ended its program after step 7 of train_step.*HINT"):
        one.exchange("greeting", "")


def reported(one: runtime.Cluster, *names: str) -> None:
    """Lets `one` know that worker 1 has begun steps of these names."""
    log = StepLog()
    for name in names:
        log.entering(name)
    one.watch.pulses.hear(1, json.dumps({"count": 1, "report": log.report()}), 0.0)


def parted(*lines: str) -> str:
    """What is told of worker 1, which is elsewhere than at these lines of this file."""
    where = ", ".join(rf"{line} {re.escape(__file__)}:\d+" for line in lines)
    return (
        rf"worker 0 .* is in greeting, after step 2, {where}, and worker 1 .* is in another call, .* step \d of other"
    )


@pytest.mark.parametrize("theirs", [("step", "other"), ("step", "step", "other"), ("step", "other", "step", "other")])
def test_who_is_in_another_step_is_not_waited_for(theirs: tuple[str, ...]) -> None:
    one = cluster(Store(), timeout_s=60.0)
    one.steps.entering("step")
    one.steps.entering("step")
    reported(one, *theirs)
    with pytest.raises(ClusterError, match=parted("called at")):
        one.exchange("greeting", "")
    broken = ValueError("Gloo all-reduce failed: Connection closed by peer")
    with pytest.raises(ClusterError, match=parted("called at", "at")):
        raise one.explained(broken)
    assert one.explained(broken).__cause__ is broken


@pytest.mark.parametrize("theirs", [(), ("step",), ("step", "step"), ("other",)])
def test_who_is_late_or_was_in_another_step_before_is_waited_for(theirs: tuple[str, ...]) -> None:
    one = cluster(Store(), timeout_s=0.05)
    one.steps.entering("step")
    one.steps.entering("step")
    reported(one, *theirs)
    with pytest.raises(DeadlineError):
        one.exchange("greeting", "")


@pytest.mark.parametrize("call", ["exchange", "barrier"])
def test_who_leaves_a_call_out_is_told_at_once(call: str) -> None:
    one = cluster(Store(), timeout_s=60.0)
    one.steps.entering("step")
    reported(one, "step", "step")
    told = r"worker 0 .* is in .*greeting.*, after step 1, .*, and worker 1 .* last seen in step 2 of step.*jd\.is_main"
    with pytest.raises(ClusterError, match=told):
        one.exchange("greeting", "") if call == "exchange" else one.barrier("greeting")


def test_an_announcement_is_for_those_who_come_to_it() -> None:
    store = Store()
    first, second = cluster(store, timeout_s=0.05), cluster(store, rank=1, timeout_s=0.05)
    for one in (first, second):
        one.steps.entering("step")
    first.announce("file", "a")
    first.announce("file", "b")
    assert [second.announced("file", 0), second.announced("file", 0)] == ["a", "b"]
    with pytest.raises(DeadlineError, match=r"waited 0\.05 s for file for worker 0"):
        second.announced("file", 0)
    first.steps.entering("step")
    second.watch.pulses.hear(0, json.dumps({"count": 1, "report": first.steps.report()}), 0.0)
    assert second.announced("file", 0) is None  # it has gone on without


def test_a_collective_that_breaks_tells_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ValueError("Gloo all-reduce failed: Connection closed by peer")
    one = cluster(Store())
    one.watch.failure = Failure(1, "raised ValueError: boom", "", 1)
    with pytest.raises(ClusterError, match=r"worker 1 .* raised ValueError: boom"):
        raise one.explained(broken)
    one = cluster(Store())
    one.watch.left = {1: "step 7 of train_step"}
    with pytest.raises(ClusterError, match="has ended its program after step 7"):
        raise one.explained(broken)
    # What is the program's own stays as it is, and what nobody explains is waited for once.
    own = ValueError("boom")
    assert one.explained(own) is own
    monkeypatch.setattr(watch, "_SUSPICIOUS_S", 0.05)
    one = cluster(Store())
    assert one.explained(broken) is broken
    monkeypatch.setattr(one, "check", None)
    assert one.explained(broken) is broken


def test_keys() -> None:
    one = cluster(Store())
    assert one.try_get("a") is None
    one.set("a", "1")
    one.set("a", "2")
    assert one.get("a", 1.0) == one.try_get("a") == "2"
    assert one.list("a") == {"a": "2"}
    one.delete("a")
    assert one.try_get("a") is None
    assert [one.number("dataset"), one.number("dataset"), one.number("other")] == [0, 1, 0]


def test_a_failure_elsewhere_is_raised_at_the_next_call() -> None:
    one = cluster(Store())
    one.check()
    one.watch.failure = Failure(1, "raised ValueError: bad", "the traceback", 1)
    for call in (one.check, lambda: one.get("a", 5.0), lambda: one.barrier("b"), lambda: one.entering("step", list)):
        with pytest.raises(ClusterError, match=r"worker 1 .* raised ValueError: bad\nthe traceback"):
            call()


def test_a_service_that_fails_says_so() -> None:
    class Broken(Store):
        def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: gone\nmore")

    with pytest.raises(ClusterError, match=r"UNAVAILABLE: gone$"):
        cluster(Broken()).get("a", 1.0)


def test_joining_after_jax_has_started() -> None:
    jax.devices()
    with pytest.raises(ConfigError, match=r"worker 1 .*JAX has already started.*HINT"):
        runtime.connect(JOBS, "worker", 1)


def test_joining_as_nobody() -> None:
    with pytest.raises(ClusterSpecError, match=r"'worker' 5.*HINT"):
        runtime.connect(JOBS, "worker", 5)


@pytest.mark.parametrize("text", ["soon", "0.5", "-3"])
def test_settings_that_are_no_seconds(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(told.SILENCE, text)
    with pytest.raises(ConfigError, match=rf"{text}.*HINT"):
        told.silence_s()


def test_a_report_is_json() -> None:
    one = cluster(Store())
    one.steps.entering("step")
    assert json.loads(json.dumps(one.steps.report()))["step"] == 1
