"""What a worker is doing, as it tells the others."""

from __future__ import annotations

import jax.numpy as jnp

from jaxtribute._src.cluster.step_log import StepInFlight, StepLog, described
from jaxtribute._src.observers import Event


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
