"""Predictions beside measurements; the processes that measure are played by a function."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jaxtribute._src.addons.planning import calibration
from jaxtribute._src.addons.planning.calibration import (
    Comparison,
    calibrate,
    calibrate_processes,
    interpolated,
    is_here,
    script_cost,
    table,
)
from jaxtribute._src.addons.planning.kinds import DEVICES
from jaxtribute._src.addons.planning.probes import Parts
from jaxtribute.errors import ArgumentError
from planning.test_cost import COST


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def run_module(module: str, arguments: Sequence[str], devices: int, workers: int = 1) -> dict[str, Any]:
        what, file, most, _, *rest = arguments
        assert most == "0"
        calls.append((what, file != "-", rest, devices, workers))
        if file != "-":
            COST.save(Path(file))
        if "--short" in rest:
            return {}
        replicas = 1 if "--alone" in rest else devices * workers
        parts = {"launch": 0.25, "products": 1.0 / devices, "passes": 0.25, "collectives": 0.5 * (replicas - 1)}
        return {"parts": parts, "step": 2.0, "batch": 64, "replicas": replicas}

    monkeypatch.setattr(calibration, "run_module", run_module)
    return calls


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "a.py"
    path.touch()
    return path


def test_each_number_of_devices_has_a_process(asked: list[Any], script: Path) -> None:
    cost, found = calibrate(script, ["--devices", "{devices}"], [1, 3])
    assert cost == COST
    assert asked == [
        ("measure", False, ["--devices", "1"], 1, 1),
        ("measure", True, ["--devices", "3"], 3, 1),
    ]
    assert [(one.devices, one.rows, one.processes) for one in found] == [(1, 64, 1), (3, 22, 1)]
    assert [one.predicted for one in found] == [1.5, pytest.approx(0.5 + 1 / 3 + 1.0)]
    assert [one.error for one in found] == [-0.25, pytest.approx(-1 / 12)]
    assert json.loads(json.dumps(found[1].as_dict())) == {
        "devices": 3,
        "rows": 22,
        "processes": 1,
        "launch": 0.25,
        "products": pytest.approx(1 / 3),
        "passes": 0.25,
        "collectives": 1.0,
        "predicted": pytest.approx(11 / 6),
        "measured": 2.0,
        "error": pytest.approx(-1 / 12),
    }


def test_processes_with_one_device_each(asked: list[Any], script: Path) -> None:
    found = calibrate_processes(script, ["{devices}"], 2)
    assert found == Comparison(2, 32, Parts(0.25, 1.0, 0.25, 0.5), 2.0, processes=2)
    assert asked == [("measure", False, ["1"], 1, 2)]


def test_scripts_that_cannot_be_measured(asked: list[Any], script: Path) -> None:
    with pytest.raises(ArgumentError, match=r"makes 1 replica\(s\) where 2 process\(es\) of 1 .*HINT.*MultiWorkerMirr"):
        calibrate_processes(script, ["--alone"], 2)
    with pytest.raises(ArgumentError, match=r"ended within two steps. HINT"):
        calibrate(script, ["--short"], [1])


def test_the_cost_alone(asked: list[Any], script: Path) -> None:
    assert script_cost(script, ["{devices}"]) == COST
    assert script_cost(script, ["{devices}"], shapes=True) == COST
    assert asked == [("cost", True, ["2"], 2, 1), ("shapes", True, ["2"], 2, 1)]


def test_the_table() -> None:
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(table([Comparison(2, 32, Parts(0.00025, 0.0005, 0.00025, 0.0005), 0.002, 2)]))
    last = captured.get().splitlines()[-1]
    expected = "2 2 32 0.250 ms 0.500 ms 0.250 ms 0.500 ms 1.500 ms 2.000 ms -25%"
    assert last.split() == expected.split()


def test_computing_for_other_numbers_of_examples() -> None:
    def one(rows: int, seconds: float) -> Comparison:
        return Comparison(1, rows, Parts(0.5, seconds - 1.0, 0.5, 9.0), 1.0)

    measured = interpolated([one(64, 4.0), one(16, 2.0)])
    assert [measured(rows) for rows in (1, 16, 40, 64, 128)] == [2.0, 2.0, 3.0, 4.0, 8.0]


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"there is no script"):
        calibrate(tmp_path / "none.py", [], [1])
    with pytest.raises(ArgumentError, match=r"there is no script .*HINT: give a Python program, or what --save wrote"):
        script_cost(tmp_path / "none.py", [])


def test_this_machine_is_no_h200() -> None:
    assert not is_here(DEVICES["h200"])
