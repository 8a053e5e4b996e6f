"""The order of the slow tests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from longest import SECONDS, dealt

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Item:
    """A test, as far as it matters where it stands."""

    nodeid: str
    ray: bool = False

    def get_closest_marker(self, name: str) -> object:
        """Anything if it has that marker."""
        return self if name == "ray" and self.ray else None


def test_what_takes_long_is_there() -> None:
    for name in SECONDS:
        file, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), name


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_process_but_the_last_begins_with_what_takes_long(workers: int) -> None:
    long = [Item(f"{name}[{case}]") for name in SECONDS for case in range(2)]
    rays = [Item(f"ray {number}", ray=True) for number in range(6)]
    items: list[Any] = [*(Item(f"short {number}") for number in range(102)), *long, *rays]
    found: list[Any] = dealt(items, workers, 2)
    assert sorted(map(str, found)) == sorted(map(str, items))
    shorts = [item.nodeid for item in found if item.nodeid.startswith("short")]
    assert shorts == [item.nodeid for item in items[:102]]
    ends = [0]
    for left in range(workers, 0, -1):  # as pytest-xdist divides them
        ends.append(ends[-1] + (len(found) - ends[-1]) // left)
    parts = [found[begin:end] for begin, end in pairwise(ends)]
    for part in parts:
        kinds = [item.nodeid.startswith("short") for item in part]
        assert kinds == sorted(kinds)
    assert sum(any(item.ray for item in part) for part in parts) == min(2, max(workers - 1, 1))
    if workers > 1:
        assert all(item.nodeid.startswith("short") for item in parts[-1])
        assert not any(part[0].nodeid.startswith("short") for part in parts[:-1])
