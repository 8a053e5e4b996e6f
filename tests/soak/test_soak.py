"""The short form of the soak: a few faults of each part, and what draws them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from jaxtribute._src.addons.testing.shared import SharedRunners
from parameter_servers.clusters import threads
from soak import __main__ as soak
from soak import counting, servers, synchronous, training
from soak.__main__ import Soak, drawn


@pytest.mark.slow
def test_a_fault_of_synchronous_training(
    multi_process: SharedRunners, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault after which nothing is started again; `test_kills.py` has others."""

    def undisturbed(cache: Path, rng: random.Random) -> synchronous.Learned:
        folder = tmp_path / "calm"
        (folder / "orders").mkdir(parents=True)
        (folder / "gate").write_text(str(training.STEPS))
        multi_process(synchronous.WORKERS, 1).run(training.main, (folder,))
        return synchronous.learned_in(folder)

    monkeypatch.setattr(soak, "undisturbed", undisturbed)
    kinds = ["strangers at all ports"]
    found = Soak(random.Random(0), tmp_path / "cache")
    found.run("synchronous", kinds)
    assert found.well.total() == len(kinds), capsys.readouterr().out
    assert not found.bad
    assert found.table().count("| 1 | 0 |") == len(kinds)


def test_a_fault_of_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The part that counts, with servers in threads; `test_ray_engine.py` kills processes."""
    with threads(workers=counting.WORKERS) as strategy:
        monkeypatch.setattr(counting, "strategy_of", lambda mirrored: strategy)
        counting.checked(tmp_path, ["a save's file: cut", "a function raises an odd error"])
    assert (tmp_path / "result").read_text() == "well"


def test_all_kinds_come_before_one_comes_again() -> None:
    assert len(synchronous.FAULTS) >= 40
    assert len(servers.FAULTS) >= 30
    kinds = drawn(servers.FAULTS, 2 * len(servers.FAULTS) + 5, random.Random(0))
    assert set(kinds[: len(servers.FAULTS)]) == set(servers.FAULTS)
    assert len(kinds) == 2 * len(servers.FAULTS) + 5
