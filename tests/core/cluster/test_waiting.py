"""Waiting for workers."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from jaxtribute._src.core.cluster import waiting
from jaxtribute._src.core.cluster.roster import Roster
from jaxtribute.errors import DeadlineError

JOBS = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}


def test_whoever_waits_says_for_whom(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(waiting, "_SPEAK_EVERY_S", 0.02)
    looks = iter(range(10))  # at least 0.1 s
    roster = Roster.of(JOBS, "worker", 0)
    waiting.await_workers(roster, lambda: [] if next(looks, None) is None else [1], "for the start", 30.0)
    said = capsys.readouterr().err
    assert re.search(r"worker 0 \(127.0.0.1:1\) has waited \d+ s for the start for worker 1 \(127.0.0.1:2\)", said)


def test_the_deadline_names_them_and_tells_where_they_are() -> None:
    roster = Roster.of(JOBS, "worker", 0)
    with pytest.raises(DeadlineError, match=r"for the start for worker 1 \(127\.0\.0\.1:2\)(.|\n)*asleep at \[1\]"):
        waiting.await_workers(
            roster, lambda: [1], "for the start", 0.05, whereabouts=lambda ranks: f"asleep at {ranks}"
        )


def test_a_failure_ends_the_wait() -> None:
    def check() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        waiting.await_workers(Roster.of(JOBS, "worker", 0), lambda: [1], "for the start", 30.0, check)


def test_a_clock_stands_still_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 101.0, 104.0, 134.0, 135.0, 200.0])
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: next(times)))
    clock = waiting.RunningClock(5.0)
    assert [clock.now() for _ in range(5)] == [101.0, 104.0, 104.0, 105.0, 105.0]
    assert clock.stopped_s == 95.0
