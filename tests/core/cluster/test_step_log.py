"""What a worker is doing, as it tells the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp

from jaxtribute._src.core.cluster.step_log import StepInFlight, StepLog, described, on_call
from jaxtribute._src.core.execution.compiled_step import CompiledStep
from jaxtribute._src.core.observers import Event


def test_a_step_is_in_flight_until_its_result_is_there() -> None:
    log = StepLog()
    assert log.oldest() is None
    log.entering("train_step", "train.py:3")
    entered = log.oldest()
    assert entered is not None
    assert entered.result is None
    assert not entered.landed()
    log.dispatched({"loss": jnp.ones(3).block_until_ready(), "name": "text"})
    assert log.oldest() is None
    assert log.last == "step 1 of train_step, called at train.py:3"


def test_random_keys_are_watched_as_arrays_are() -> None:
    log = StepLog()
    log.entering("step")
    log.dispatched(jax.random.key(0).block_until_ready())
    assert log.oldest() is None


def test_an_array_that_a_later_step_took_over_has_landed() -> None:
    array = jnp.ones(3)
    array.delete()
    assert StepInFlight(1, "step", 0.0, array).landed()


def test_a_result_without_arrays_is_not_watched() -> None:
    log = StepLog()
    log.entering("step")
    log.dispatched(())
    assert log.oldest() is None


def test_the_report() -> None:
    log = StepLog()
    log.entering("train_step")
    log.waited_s += 1.5
    log.on_end(Event("input", "", 0.0, 0.25))
    report = log.report()
    assert report["step"] == 1
    assert report["waited_s"] == 1.5
    assert report["input_s"] == 0.25
    assert __file__ in report["where"]
    assert described(report).startswith("last seen in step 1 of train_step, at ")
    assert described({}) == "nothing is known of it"


def test_a_report_tells_whether_a_step_was_handed_over() -> None:
    log = StepLog()
    log.entering("step")
    assert not log.report()["handed"], "it may be traced yet"
    log.dispatched(jnp.ones(3))
    assert log.report()["handed"]
    log.entering("step")
    assert not log.report()["handed"]
    assert log.meets("the first run of step", "train.py:3").within
    log.dispatched(jnp.ones(3))
    assert not log.meets("a barrier", "train.py:4").within


def test_a_step_is_no_part_of_a_report_as_handed_over_while_it_is_entered() -> None:
    """The watch may ask between any two lines."""
    log = StepLog()
    log.entering("step")
    log.dispatched(jnp.ones(3))
    reports = list[dict[str, Any]]()
    on_call.append(lambda log: reports.append(log.report()))
    try:
        log.entering("step")
    finally:
        on_call.pop()
    assert [(one["call"], one["handed"]) for one in reports] == [(2, False)]


def test_a_step_that_blocks_in_the_devices_is_handed_over_once_two_reports_find_it_there() -> None:
    log, reports = StepLog(), list[dict[str, Any]]()

    def program(x: Any) -> Any:
        log.entering("step")
        reports.append(log.report())  # it is traced
        return x

    def running() -> None:
        # As the thread that watches finds the main thread: in no function of Python's that `_run` has called.
        code = CompiledStep._run.__code__  # pyright: ignore[reportPrivateUsage]
        found = SimpleNamespace(f_code=code, f_globals={"__name__": "jaxtribute.x"}, f_lineno=1, f_back=None)
        for _ in range(2):
            reports.append(log.report(cast(Any, found)))

    jax.jit(program)(1.0)
    running()
    assert [one["handed"] for one in reports] == [False, False, True]
