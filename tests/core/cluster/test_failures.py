"""Failures as text that travels."""

from __future__ import annotations

import io
import os
import sys

import jax
import pytest

from jaxtribute._src.core.cluster.failures import ELSEWHERE, RESUME, Failure, may_be_broken_collective, say

NAMES = ("worker 0 (a:1)", "worker 1 (b:1)")


def test_there_and_back() -> None:
    try:
        raise ValueError("bad\nvalue")
    except ValueError as error:
        failure = Failure.raised(1, error)
    assert Failure.decode(failure.encode()) == failure
    assert failure.summary == "raised ValueError: bad"
    assert "test_failures.py" in failure.details
    assert failure.message(NAMES) == "worker 1 (b:1) raised ValueError: bad"


def test_who_noticed() -> None:
    failure = Failure(1, "was lost", "", 0)
    assert failure.message(NAMES) == "worker 1 (b:1) was lost, as worker 0 (a:1) noticed"


def test_a_collective_that_lost_a_peer_is_found_below_other_errors() -> None:
    def wrapped(cause: BaseException) -> BaseException:
        try:
            raise RuntimeError("the step failed") from cause
        except RuntimeError as error:
            return error

    assert may_be_broken_collective(wrapped(ValueError("Gloo all-reduce failed: connection closed by peer")))
    assert may_be_broken_collective(wrapped(jax.errors.JaxRuntimeError("UNAVAILABLE")))
    assert not may_be_broken_collective(wrapped(ValueError("not a number")))
    assert not may_be_broken_collective(None)


def test_a_line_that_nobody_can_read_any_more_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    say("worker 1 was lost")


def test_the_exit_codes_are_those_of_sysexits_as_schedulers_know_them() -> None:
    assert (RESUME, ELSEWHERE) == (os.EX_TEMPFAIL, os.EX_SOFTWARE)
