"""One in so many of the slow tests: shares are alike, each turn has another, and none is always left out."""

from __future__ import annotations

from typing import Any

import pytest

from longest import SECONDS, seconds_of
from shares import share


class _Item:
    """A test, as far as its name goes."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid

    def get_closest_marker(self, _name: str) -> None:
        return None


ITEMS: list[Any] = [_Item(name) for name in (*SECONDS, *(f"tests/test_slow.py::test_slow[{n}]" for n in range(200)))]


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_shares_are_alike_and_are_all_tests_in_time(parts: int) -> None:
    shares = [share(ITEMS, parts, f"commit {number}") for number in range(20 * parts)]
    assert set().union(*shares) == set(ITEMS)
    assert all(len(one) in (len(ITEMS) // parts, -(-len(ITEMS) // parts)) for one in shares)
    seconds = [sum(map(seconds_of, one)) for one in shares]
    # Of each piece of neighbours another one: shares differ by less than the longest test, and the last piece.
    assert max(seconds) - min(seconds) <= 2 * max(SECONDS.values())


def test_a_turn_has_the_same_share_again_and_another_turn_another() -> None:
    assert share(ITEMS, 8, "one") == share(list(reversed(ITEMS)), 8, "one")
    assert share(ITEMS, 8, "one") != share(ITEMS, 8, "other")
