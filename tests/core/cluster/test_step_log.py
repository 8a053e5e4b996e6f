"""What a worker is doing, as it tells the others, and which worker the others wait for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxtribute._src.core.cluster.step_log import EVERY, StepInFlight, StepLog, comparison, described, interval_s
from jaxtribute._src.core.observers import Event
from jaxtribute.errors import ConfigError

NAMES = ("worker 0 (a:1)", "worker 1 (b:1)")


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


def report(step: int, input_s: float, waited_s: float) -> dict[str, Any]:
    return {"step": step, "input_s": input_s, "waited_s": waited_s, "name": "step", "where": "here"}


def test_the_one_that_waits_least_holds_the_others_up() -> None:
    before = {0: report(5, 1.0, 2.0), 1: report(5, 1.0, 2.0)}
    after = {0: report(25, 1.5, 22.0), 1: report(25, 19.0, 2.5)}
    text = comparison(before, after, 30.0, NAMES)
    assert text == (
        "in 30 s: worker 0 (a:1) input 0.5 s, waiting 20.0 s of 20 steps; worker 1 (b:1) input 18.0 s, waiting 0.5 s "
        "of 20 steps. The others wait for worker 1 (b:1), for its input"
    )
    slow = {0: report(25, 1.5, 22.0), 1: report(25, 1.1, 2.5)}
    assert str(comparison(before, slow, 30.0, NAMES)).endswith("worker 1 (b:1), for its own computation")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {0: report(5, 0, 0), 1: report(5, 0, 0)}),  # nothing to compare with
        ({0: report(5, 0, 0)}, {0: report(9, 0, 9), 1: report(9, 0, 0)}),  # one has not reported
        ({0: report(5, 0, 0), 1: report(5, 0, 0)}, {0: report(5, 0, 9), 1: report(5, 0, 0)}),  # no step
        ({0: report(5, 0, 0), 1: report(5, 0, 0)}, {0: report(9, 0, 5), 1: report(9, 0, 4)}),  # about equal
    ],
)
def test_nothing_is_said_where_there_is_nothing_to_say(before: Any, after: Any) -> None:
    assert comparison(before, after, 30.0, NAMES) is None


def test_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVERY, raising=False)
    assert interval_s() == 60.0
    monkeypatch.setenv(EVERY, "0")
    assert interval_s() == 0.0
    monkeypatch.setenv(EVERY, "often")
    with pytest.raises(ConfigError, match=r"'often'.*HINT"):
        interval_s()
