"""Saves run one after the other, and what goes wrong is told once."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from jaxtribute._src.core.checkpoint import background
from jaxtribute._src.core.checkpoint.background import Background


def test_the_next_save_waits_for_the_one_before() -> None:
    saves, go, order = Background(), threading.Event(), list[int]()

    def first() -> None:
        assert go.wait(60)
        order.append(1)

    saves.start(first)
    assert saves.busy
    saves.wait(timeout_s=0.01)
    assert saves.busy
    go.set()
    saves.start(lambda: order.append(2))
    saves.wait()
    assert order == [1, 2]
    assert not saves.busy


def test_an_error_is_logged_at_once_and_raised_once(caplog: pytest.LogCaptureFixture) -> None:
    saves = Background()

    def fail() -> None:
        raise OSError("disk full")

    with caplog.at_level(logging.ERROR, background.__name__):
        saves.start(fail)
        with pytest.raises(OSError, match="disk full"):
            saves.wait()
    assert "disk full" in caplog.text
    saves.wait()


@pytest.mark.parametrize("path", [None, Path("/some/where")])
def test_at_the_end_all_saves_are_waited_for_and_by_a_reader_those_to_its_path(path: Path | None) -> None:
    saves, go = Background(), threading.Event()
    idle = Background()

    def save() -> None:
        assert go.wait(60)

    saves.start(save, Path("/some/where"))
    background.settle_all(Path("/some/where/else"))  # which is not being saved
    assert saves.busy
    threading.Timer(0.05, go.set).start()
    background.settle_all(path)
    assert not saves.busy
    saves.wait()
    idle.settle()


def test_a_save_that_is_being_started_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    saves = Background()

    class Polled(threading.Thread):
        def start(self) -> None:
            saves.settle()  # as another thread may at this moment
            super().start()

    monkeypatch.setattr(threading, "Thread", Polled)
    saves.start(lambda: None)
    saves.settle()
    assert not saves.busy
