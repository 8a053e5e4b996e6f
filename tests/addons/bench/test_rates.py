"""Turns that are taken."""

from types import SimpleNamespace

import pytest

from jaxtribute._src.addons.bench import rates
from jaxtribute._src.addons.bench.rates import alternate


def test_calls_take_turns_and_each_as_often() -> None:
    order: list[str] = []

    def call(name: str) -> None:
        order.append(name)

    found = alternate({"a": lambda: call("a"), "b": lambda: call("b")}, count=3, rounds=2)
    assert order == [*"aabb", *"aaabbb", *"aaabbb"]
    assert set(found) == {"a", "b"}


def test_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, now = iter([9.0, 9.0, 7.0, 2.0, 1.0]), [0.0]

    def call() -> None:
        now[0] += next(taken)

    monkeypatch.setattr(rates, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert alternate({"a": call}, count=1, rounds=3) == {"a": 2.0}, "one slow turn changes nothing"
