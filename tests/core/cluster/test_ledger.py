"""Workers compare what they are about to do."""

from __future__ import annotations

import json
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute._src.core.cluster import ledger
from jaxtribute.errors import ClusterError, ConfigError

NAMES = ("worker 0 (a:1)", "worker 1 (b:1)")


@pytest.fixture(autouse=True)
def restored() -> Generator[None]:
    yield
    ledger._chosen = None  # pyright: ignore[reportPrivateUsage]
    ledger._by_environment.cache_clear()  # pyright: ignore[reportPrivateUsage]


class Meeting:
    """Two workers: this one's texts come with those that the other would have given."""

    names = NAMES

    def __init__(self, *others: Any) -> None:
        self.others = list(others)
        self.whats: list[str] = []

    def exchange(self, what: str, text: str, *, at: Any) -> list[str]:
        assert at == "the step"
        self.whats.append(what)
        other = self.others.pop(0)
        return [text, text if other is None else json.dumps(other)]


def compare(meeting: Meeting, name: str, collectives: list[str]) -> None:
    cluster: Any = SimpleNamespace(names=NAMES, exchange=meeting.exchange, steps=SimpleNamespace(place="the step"))
    ledger.compare(cluster, name, collectives)


def test_equal_programs_pass_with_one_exchange() -> None:
    meeting = Meeting(None)
    compare(meeting, "step", ["psum of float32[3] at a.py:1"])
    assert meeting.whats == ["the ledger"]


def test_the_first_collective_that_differs_is_named_with_both_lines() -> None:
    meeting = Meeting(["step", "b.py:9", "other"], ["psum of float32[3] at a.py:1", "psum of int32[] at a.py:7"])
    with pytest.raises(ClusterError) as caught:
        compare(meeting, "step", ["psum of float32[3] at a.py:1", "psum of float32[] at a.py:2"])
    text = str(caught.value)
    assert "collective 1 of worker 0 (a:1): psum of float32[] at a.py:2" in text
    assert "collective 1 of worker 1 (b:1): psum of int32[] at a.py:7" in text
    assert f"worker 0 (a:1): step, called at {__file__}" in text
    assert "worker 1 (b:1): step, called at b.py:9" in text
    assert "HINT" in text


def test_one_collective_more() -> None:
    meeting = Meeting(["step", "b.py:9", "other"], [])
    with pytest.raises(ClusterError, match=r"collective 0 of worker 1 \(b:1\): none"):
        compare(meeting, "step", ["psum of float32[] at a.py:2"])


def test_different_calls() -> None:
    meeting = Meeting(["evaluate", "b.py:9", "x"], [])
    with pytest.raises(ClusterError, match=r"worker 1 \(b:1\): evaluate, called at b\.py:9"):
        compare(meeting, "step", [])


def test_how_it_is_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ledger.DEBUG, raising=False)
    assert not ledger.enabled()
    monkeypatch.setenv(ledger.DEBUG, " collectives,")
    assert not ledger.enabled()  # a step does not look into the environment each time
    ledger._by_environment.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert ledger.enabled()
    jd.config.debug_collectives(False)
    assert not ledger.enabled()
    jd.config.debug_collectives(True)
    assert ledger.enabled()


def test_a_word_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ledger.DEBUG, "collective")
    ledger._by_environment.cache_clear()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ConfigError, match=r"JAXTRIBUTE_DEBUG='collective' is not known\. HINT: set it to collectives"):
        ledger.enabled()
