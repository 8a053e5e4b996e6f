"""What a rehearsal says of programs that do not survive; `multiprocess/test_kills.py` has one that does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute._src.addons.testing import rehearsal
from jaxtribute.errors import DeadlineError


class Launches:
    """What the launcher would do: exit codes, and what the program's handler would report."""

    def __init__(self, *runs: tuple[int, list[dict[str, Any]]]) -> None:
        self.runs = list(runs)
        self.faults: list[dict[str, Any]] = []

    def __call__(self, *given: Any) -> tuple[int, str]:
        report, self.faults = given[4], [*self.faults, *given[5]]
        code, events = self.runs.pop(0)
        if events:
            report.write_text("".join(json.dumps(event) + "\n" for event in events))
        return code, "what it printed"


def event(kind: str, path: str | None, runs: int) -> dict[str, Any]:
    return {"event": kind, "checkpoint": path, "runs": runs}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return jd.Checkpoint(v=jd.Variable(1.0)).save(tmp_path / "ckpt", block=True)


def rehearse(monkeypatch: pytest.MonkeyPatch, launches: Launches) -> rehearsal.Rehearsal:
    monkeypatch.setattr(rehearsal, "_launch", launches)
    return rehearsal.rehearse("train.py", step=3)


def test_a_program_that_survives(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    launches = Launches(
        (75, [event("start", None, 0), event("saved", path, 4)]),
        (75, [event("start", path, 4), event("saved", path, 5)]),
    )
    found = rehearse(monkeypatch, launches)
    assert found == rehearsal.Rehearsal(True, True, path, 4, "", "what it printed")
    assert found.well
    assert [fault["step"] for fault in launches.faults] == [3, 1]
    assert launches.faults[0]["rank"] == launches.faults[1]["rank"]


@pytest.mark.parametrize(
    ("code", "events", "problem"),
    [
        (0, [], "made no PreemptionCheckpointHandler"),
        (0, [event("start", None, 0)], "went on to its end"),
        (1, [event("start", None, 0)], "no checkpoint was saved, exit code 1"),
    ],
)
def test_a_program_that_saves_nothing(
    monkeypatch: pytest.MonkeyPatch, code: int, events: list[dict[str, Any]], problem: str
) -> None:
    found = rehearse(monkeypatch, Launches((code, events)))
    assert problem in found.problem
    assert "HINT" in found.problem
    assert not found.saved


def test_a_program_that_ends_otherwise(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    saved = event("saved", path, 4)
    found = rehearse(monkeypatch, Launches((1, [saved])))
    assert "exit code 1 instead of 75" in found.problem
    assert found.saved
    found = rehearse(monkeypatch, Launches((75, [saved, saved])))
    assert "2 checkpoints were saved" in found.problem
    assert not found.well


def test_a_checkpoint_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = rehearse(monkeypatch, Launches((75, [event("saved", str(tmp_path), 4)])))
    assert "cannot be read" in found.problem
    assert not found.saved


@pytest.mark.parametrize("started", [[], [event("start", None, 0)], [event("start", "other", 4)]])
def test_a_program_that_begins_anew(monkeypatch: pytest.MonkeyPatch, path: str, started: list[dict[str, Any]]) -> None:
    found = rehearse(monkeypatch, Launches((75, [event("saved", path, 4)]), (75, started)))
    assert f"instead of {path} after 4 runs" in found.problem
    assert (found.saved, found.resumed) == (True, False)


@pytest.mark.slow
def test_a_program_that_does_not_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time; print('here', flush=True); time.sleep(100)")
    with pytest.raises(DeadlineError, match=r"script\.py had not ended .* HINT"):
        rehearsal.rehearse(script, workers=1, timeout_s=2)
