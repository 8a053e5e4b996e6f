"""Failures as text that travels."""

from __future__ import annotations

from jaxtribute._src.cluster.failures import Failure

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
