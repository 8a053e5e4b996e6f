"""The fixtures fail a test that leaves something behind, and only that one."""

import os
import threading
from collections.abc import Generator
from typing import Any

import pytest

from jaxtribute._src.addons.testing import leaks
from jaxtribute._src.addons.testing.shared import SharedRunners
from jaxtribute.testing import pytest_plugin


def fixture(definition: Any, *args: Any) -> Generator[None]:
    """The generator of a fixture, up to where the test would run."""
    running = definition._get_wrapped_function()(*args)
    next(running)
    return running


@pytest.mark.slow
def test_a_thread_that_stays_fails_the_test(multi_process: SharedRunners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "DEADLINE_S", 0.0)
    guard = fixture(pytest_plugin.no_leaks, multi_process)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    thread.start()
    with pytest.raises(pytest.fail.Exception, match="the test left behind: forgotten"):
        next(guard)
    stop.set()
    thread.join()
    guard = fixture(pytest_plugin.no_leaks, multi_process)
    assert list(guard) == []


def test_the_environment_is_restored_and_its_change_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXTRIBUTE_OLD", "1")
    guard = fixture(pytest_plugin.same_environment)
    os.environ["JAXTRIBUTE_OLD"] = "2"
    os.environ["JAXTRIBUTE_NEW"] = "3"
    with pytest.raises(pytest.fail.Exception, match="environment variables: JAXTRIBUTE_NEW, JAXTRIBUTE_OLD"):
        next(guard)
    assert os.environ["JAXTRIBUTE_OLD"] == "1"
    assert "JAXTRIBUTE_NEW" not in os.environ
    assert list(fixture(pytest_plugin.same_environment)) == []


@pytest.mark.slow
def test_runners_end_with_the_session() -> None:
    definition: Any = pytest_plugin.multi_process
    running = definition._get_wrapped_function()()
    runners = next(running)
    runner = runners(workers=1)
    assert runners.pids == frozenset()
    runner.start()
    assert len(runners.pids) == 2
    assert list(running) == []
    assert runner.pids == ()
