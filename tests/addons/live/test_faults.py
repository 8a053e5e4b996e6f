"""Faults put into a training on two workers, one at a time: where the run's records say that the time went."""

import json
import math
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import live_runs
from jaxtribute._src.addons.live.state import Run

PROGRAM = Path(__file__).parents[2] / "support" / "live_program.py"
NOISE_S = 0.5
"""Seconds that belong to the same part in a training without the fault, on a machine that others use."""


pytestmark = live_runs.on_a_quiet_machine


@dataclass(frozen=True)
class Fault:
    """A fault that was put into a run.

    Attributes:
      cost: seconds that it cost.
      begin: moment at which it began.
      end: moment at which it was over.
    """

    cost: float
    begin: float
    end: float


def trained(fault: str, directory: Path) -> tuple[dict[str, Any], Fault]:
    """The state of a run with a fault, and what that has cost."""
    command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers", "2", "--devices-per-worker", "1"]
    command += ["--max-restarts", "1", "--run", str(directory / "run"), str(PROGRAM), fault, str(directory)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=380)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    told = re.search(r"COST ([\d.]+) FROM ([\d.]+) TO ([\d.]+)", printed)
    assert told is not None, printed
    state = Run(directory / "run").state()
    assert state["status"] == "done"
    for one in state["workers"]:
        assert sum(one["bar"].values()) == pytest.approx(state["wall"], rel=0.01)
    return state, Fault(*map(float, told.groups()))


def around(run: Path, fault: Fault) -> dict[str, Any]:
    """The state of a run that has only the windows of a fault: start-up and compiling have waits of their own."""
    begin, end = math.floor(fault.begin) - 1, math.ceil(fault.end) + 1
    part = run.parent / "part"
    part.mkdir()
    for path in run.glob("worker-*.jsonl"):
        kept: list[dict[str, Any]] = [{"k": "start", "t": begin, "rank": int(path.stem[-5:])}]
        over = end + 1.0
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["k"] == "w" and begin <= record["t"] <= end:
                kept.append(record)
            if record["k"] == "end":  # seconds after the training would count as time of the worker's own
                over = min(over, record["t"])
        kept.append({"k": "end", "t": over})
        (part / path.name).write_text("".join(json.dumps(record) + "\n" for record in kept))
    return Run(part).state()


def usual(run: Path, fault: Fault, part: str) -> float:
    """Seconds of a part of worker 1 in a second of training without the fault."""
    spent = seconds = 0.0
    for line in (run / "worker-00001.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["k"] != "w" or not record.get("n") or "compile" in record["b"]:
            continue
        if record["t"] + 1 < fault.begin - 1 or record["t"] > fault.end + 1:
            spent += record["b"].get(part, 0.0)
            seconds += sum(record["b"].values())
    return spent / max(seconds, 1.0)


def within(found: float, cost: float) -> bool:
    """True if a part has the cost of a fault to 5 %, noise apart."""
    return 0.95 * cost <= found <= 1.05 * cost + NOISE_S


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "part", "words"),
    [("input", "input", "its input"), ("stuck", "other", "its own"), ("slow", "other", "its own")],
)
def test_one_worker_holds_the_other_up(fault: str, part: str, words: str, tmp_path: Path) -> None:
    whole, found = trained(fault, tmp_path)
    state = around(tmp_path / "run", found)
    first, faulty = (one["bar"] for one in state["workers"])
    beside = (sum(faulty.values()) - found.cost) * usual(tmp_path / "run", found, part)
    assert within(faulty[part] - beside, found.cost), (faulty, beside, found)
    held = next(one for one in state["held"] if one["rank"] == 1)
    # What worker 0 had to do itself meanwhile, on a busy machine more, it did not wait for; and without the fault, too,
    # one of them waits for the other.
    own = first["input"] + first["other"]
    assert 0.95 * found.cost - own <= held["causes"][part] <= 1.05 * found.cost + NOISE_S + beside, (
        held,
        first,
        found,
    )
    assert held["cause"] == part
    assert first["collective"] > 0.95 * found.cost - own
    assert any(f"for worker 1, for {words}" in notice for notice in whole["notices"])


@pytest.mark.slow
def test_a_slow_save(tmp_path: Path) -> None:
    state, found = trained("save", tmp_path)
    (event,) = [event for event in state["events"] if event["kind"] == "save"]
    assert event["seconds"] >= found.cost
    for one in state["workers"]:  # both wait until the checkpoint is whole
        assert within(one["bar"]["save"], event["seconds"]), (one["bar"], event)


@pytest.mark.slow
def test_a_kill_with_a_restart(tmp_path: Path) -> None:
    state, found = trained("kill", tmp_path)
    assert state["starts"] == 2
    bar = state["workers"][1]["bar"]
    assert within(bar["lost"], found.cost), (bar, found)  # from the save to the kill
    assert bar["recovery"] > 1.0
    (failure,) = [event for event in state["events"] if event["kind"] == "failure"]
    assert failure["rank"] == 1
    assert signal.SIGKILL.name in failure["text"]
