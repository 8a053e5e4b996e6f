"""Turns that are taken."""

import time

from jaxtribute.bench.timing import alternate


def test_calls_take_turns_and_each_as_often() -> None:
    order: list[str] = []

    def call(name: str) -> None:
        order.append(name)

    found = alternate({"a": lambda: call("a"), "b": lambda: call("b")}, count=3, rounds=2)
    assert order == [*"aabb", *"aaabbb", *"aaabbb"]
    assert set(found) == {"a", "b"}


def test_the_median_counts() -> None:
    naps = iter([0.0, 0.0, 0.05, 0.0, 0.0])
    found = alternate({"a": lambda: time.sleep(next(naps))}, count=1, rounds=3)
    assert found["a"] < 0.04, "one slow turn changes nothing"
