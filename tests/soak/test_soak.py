"""The short form of the soak: a few faults of each part, and what draws them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from soak import servers, synchronous
from soak.__main__ import Soak, drawn


@pytest.mark.ray  # and time for several jobs, of which each takes half a minute to start where much else runs
@pytest.mark.parametrize(
    ("part", "kinds"),
    [
        ("synchronous", ["a worker is killed"]),
        ("servers", ["a save's file: cut"]),
    ],
)
def test_a_few_faults(part: str, kinds: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soak = Soak(random.Random(0), tmp_path)
    soak.run(part, kinds)
    assert soak.well.total() == len(kinds), capsys.readouterr().out
    assert not soak.bad
    assert soak.table().count("| 1 | 0 |") == len(kinds)


def test_all_kinds_come_before_one_comes_again() -> None:
    assert len(synchronous.FAULTS) >= 40
    assert len(servers.FAULTS) >= 30
    kinds = drawn(servers.FAULTS, 2 * len(servers.FAULTS) + 5, random.Random(0))
    assert set(kinds[: len(servers.FAULTS)]) == set(servers.FAULTS)
    assert len(kinds) == 2 * len(servers.FAULTS) + 5
