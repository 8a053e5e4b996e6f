"""Keras on islands that train alone, in processes, against Keras alone and the algorithm by hand."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.addons.elastic.test_launched import DEADLINE_S, FIT, job

from samples import ALL_CASES

PROGRAM = FIT.with_name("keras_apart.py")
CASES = [("fit", 1), ("step", 2), ("average", 1), ("loop", 1)]
ALL = [*CASES, ("fit", 2), ("step", 1), ("average", 2)]
"""A loop of one's own divides by the rows of its replica."""
pytestmark = pytest.mark.slow


def check_close(own: Any, expected: Any, what: str) -> None:
    """Compares what two programs have told."""
    assert own.keys() == expected.keys()
    for name, value in expected.items():
        if name == "history":
            check_close(own[name], value, what)
            continue
        for mine, other in zip(own[name], value, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5, err_msg=f"{what}: {name}")


@pytest.mark.parametrize(("kind", "devices"), ALL if ALL_CASES else CASES)
def test_two_islands_train_a_keras_model_as_the_algorithm_by_hand(kind: str, devices: int, tmp_path: Path) -> None:
    """Epochs end between two meetings; the last batch has a row for one island alone."""
    program = [str(PROGRAM), kind, str(tmp_path)]
    launch = [sys.executable, "-m", "jaxtribute.cli", "launch", "--elastic", "--workers", "2", "--devices-per-worker"]
    for command in ([sys.executable, *program, str(devices)], [*launch, str(devices), *program]):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    alone = json.loads((tmp_path / "alone.json").read_text())
    for island in range(2):
        check_close(json.loads((tmp_path / f"told-{island}.json").read_text()), alone, f"island {island}")


@pytest.mark.parametrize(("overlap", "returns"), [("0", True), ("3", False)])
def test_fit_goes_on_alone_when_an_island_is_killed_and_takes_it_in_again(
    overlap: str, returns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are there at the end have told the same, and the model's file is theirs."""
    monkeypatch.setenv("SYNC_EVERY", "5")
    monkeypatch.setenv("OVERLAP", overlap)
    with job(
        tmp_path, 2, 30 if returns else 4, options=("--max-restarts", str(int(returns))), program=(FIT, 0.05)
    ) as it:
        it.signal(signal.SIGKILL, 0, at_step=15)
        assert it.wait() == 0, it.output
        told = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("history-*.json"))]
        assert [left for _, left in told] == ([[0, 1]] * 2 if returns else [[1]]), it.output
        assert all(history == told[0][0] for history, _ in told), told
        assert told[0][0]["saved"]
        assert np.isfinite(told[0][0]["loss"]).all()
