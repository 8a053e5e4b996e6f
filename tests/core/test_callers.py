"""Where in the user's code a call comes from."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

import jax.numpy as jnp
import pytest

import jaxtribute as jd
from jaxtribute._src.core.callers import caller, frame_of, located, stack, warn


def test_the_users_own_line() -> None:
    line = sys._getframe().f_lineno + 1  # pyright: ignore[reportPrivateUsage]
    assert caller() == f"{__file__}:{line}"


def test_frames_of_the_library_are_passed_over() -> None:
    scope: dict[str, Any] = {"__name__": "jaxtribute.somewhere", "caller": caller}
    exec("def inner():\n    return caller()", scope)
    assert caller().rpartition(":")[0] == scope["inner"]().rpartition(":")[0] == __file__


def test_nobody() -> None:
    assert located(None) == "an unknown place"
    assert stack(None) == ""


def test_the_main_thread_seen_from_another() -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend([located(frame_of()), stack(frame_of())]))
    thread.start()
    thread.join(10)
    assert found[0]
    assert "test_the_main_thread_seen_from_another" in found[1]


def test_a_warning_stands_at_the_users_line_however_deep_it_comes_from() -> None:
    """The interpreter shows that line, and filters by module go by the user's module."""
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = jd.Variable(1.0)

    def reads_nothing() -> None:
        jd.grad(lambda: jnp.float32(1), [v])()

    @jd.function
    def compiled() -> None:
        strategy.run(reads_nothing)

    for call in (reads_nothing, lambda: strategy.run(reads_nothing), compiled):
        with pytest.warns(UserWarning, match="reads none of its variables") as told:
            call()
        assert {(one.filename, one.lineno) for one in told} == {(__file__, reads_nothing.__code__.co_firstlineno + 1)}


def test_a_warning_of_a_thread_without_code_of_the_users() -> None:
    told: list[Any] = []

    def work() -> None:
        with warnings.catch_warnings(record=True, action="always") as caught:
            exec("warn('of nobody')", {"__name__": "threading", "warn": warn})
        told.extend(caught)

    thread = threading.Thread(target=lambda: None)
    thread.run = work
    thread.start()
    thread.join(10)
    assert [str(one.message) for one in told] == ["of nobody"]
