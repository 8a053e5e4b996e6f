"""Workers that are killed, and told to end, lose nothing: the short form of `tests/soak/kills.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kill_program
from jaxtribute._src.addons.testing.rehearsal import rehearse
from jaxtribute._src.addons.testing.shared import SharedRunners

PROGRAM = Path(kill_program.__file__)
EPOCHS, EVERY, EXAMPLES = 3, 2, 320


@pytest.mark.slow
def test_a_kill_in_a_save_and_a_preemption_change_nothing(multi_process: SharedRunners, tmp_path: Path) -> None:
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    calm.mkdir()
    rough.mkdir()
    multi_process(workers=2, devices=2).run(kill_program.main, (calm, EPOCHS, EVERY, EXAMPLES))
    faults: list[dict[str, Any]] = [
        {"kind": "kill", "number": 15, "rank": 1, "step": 4},  # all save at one step
        {"kind": "kill", "rank": 0, "at": "save:end", "step": 2, "restart": 1},  # while it is written
    ]
    arguments = [PROGRAM, rough, EPOCHS, EVERY, EXAMPLES]
    command = ["-m", "jaxtribute.cli", "launch", "--workers", "2", "--devices-per-worker", "2", "--max-restarts", "2"]
    done = subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"JAXTRIBUTE_FAULTS": json.dumps(faults)},
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "since worker 1" in output
    assert "got SIGTERM" in output
    starts = [int(line.rpartition(" ")[2]) for line in output.splitlines() if line.startswith("[0] pid")]
    assert len(starts) == 3, output
    assert 4 <= starts[1] <= starts[2] < EPOCHS * 5, output
    with np.load(calm / "result.npz") as one, np.load(rough / "result.npz") as other:
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
        assert (other["seen:0"] == 1).all()


@pytest.mark.slow
def test_a_rehearsal_of_a_preemption(tmp_path: Path) -> None:
    found = rehearse(PROGRAM, [str(tmp_path), "3", "100", "320"], workers=1, step=2, timeout_s=300)
    assert found.problem == "", found
    assert found.well
    assert found.runs >= 2
    assert found.checkpoint == str(tmp_path / "checkpoints" / "ckpt-1")
