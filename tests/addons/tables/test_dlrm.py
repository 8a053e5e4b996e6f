"""A DLRM has the same losses on any number of replicas, and goes on from a save on another number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlrm
import jaxtribute as jd
from dlrm import Recommender
from jaxtribute._src.addons.testing.shared import SharedRunners
from samples import ALL_CASES

STEPS = 200 if ALL_CASES else 12


@pytest.fixture(scope="module")
def losses() -> list[float]:
    """Those on one device."""
    found = Recommender(jd.OneDeviceStrategy("cpu:0")).losses(range(STEPS))
    assert found[-1] < found[0]
    return found


def same(found: Any, losses: Any) -> None:
    """Compares losses to 1e-5."""
    np.testing.assert_allclose(found, losses, rtol=1e-5)


@pytest.mark.parametrize("replicas", [2, 4] if ALL_CASES else [4])
def test_losses_do_not_depend_on_the_number_of_replicas(replicas: int, losses: list[float]) -> None:
    same(Recommender(jd.MirroredStrategy(replicas)).losses(range(STEPS)), losses)


def test_two_replicas_become_three_in_the_middle(losses: list[float], tmp_path: Path) -> None:
    before, after = (Recommender(jd.MirroredStrategy(replicas)) for replicas in (2, 3))
    found = before.losses(range(STEPS // 2))
    after.checkpoint.restore(before.checkpoint.save(tmp_path / "c"))
    same(found + after.losses(range(STEPS // 2, STEPS)), losses)


@pytest.mark.slow
@pytest.mark.skipif(not ALL_CASES, reason="test_tables.py has programs on two workers")
def test_two_workers_become_three_in_the_middle(
    multi_process: SharedRunners, losses: list[float], tmp_path: Path
) -> None:
    run = dlrm.losses_on_worker
    for found in multi_process(workers=2, devices=1).run(run, args=(STEPS,), timeout_s=400):
        same(found, losses)
    parts = [multi_process(workers, 1).run(run, args=(STEPS, str(tmp_path / "c")), timeout_s=400) for workers in (2, 3)]
    for first, second in zip(parts[0], parts[1], strict=False):
        same(first + second, losses)
