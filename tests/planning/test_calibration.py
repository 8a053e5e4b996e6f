"""Predictions beside measurements; the processes that measure are played by a function."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jaxtribute.errors import ArgumentError
from jaxtribute.planning import calibration
from jaxtribute.planning.calibration import (
    Comparison,
    Measurement,
    calibrate,
    calibrate_processes,
    interpolated,
    is_here,
    script_cost,
    table,
)
from jaxtribute.planning.kinds import DEVICES
from planning.test_cost import COST


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def run_module(module: str, arguments: Sequence[str], devices: int, workers: int = 1) -> dict[str, Any]:
        what, file, *rest = arguments
        call: tuple[Any, ...] = (what, devices, rest[1:]) if workers == 1 else (what, devices, rest[1:], workers)
        if what == "parts":
            request = json.loads(Path(file).read_text())
            call = (*call, request["rows"], request["collectives"])
        calls.append(call)  # at once: several threads may ask
        if what == "cost":
            replace(COST, replicas=1 if "--alone" in rest else COST.replicas).save(Path(file))
            return {}
        if what == "time":
            return {"seconds": 2.0 / devices / workers}
        if what == "exchange":
            return {"collectives": 0.3}
        return {"compute": 1.5 / devices, "collectives": 0.1 if devices > 1 else 0.0}

    monkeypatch.setattr(calibration, "run_module", run_module)
    return calls


def test_parts_and_the_whole_alternate(asked: list[Any], tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.touch()
    cost, found = calibrate(script, ["--devices", "{devices}"], [1, 3])
    assert cost == COST
    assert asked == [
        ("cost", 3, ["--devices", "3"]),
        ("parts", 1, ["--devices", "1"], 64, []),
        ("time", 1, ["--devices", "1"]),
        ("parts", 3, ["--devices", "3"], 22, [["all-reduce", [8, 4]]]),
        ("time", 3, ["--devices", "3"]),
    ]
    assert [one.measurement.step for one in found] == [1.5, pytest.approx(0.6)]
    assert [one.error for one in found] == [pytest.approx(-0.25), pytest.approx(-0.1)]
    assert json.loads(json.dumps(found[1].as_dict()))["predicted"] == pytest.approx(0.6)


def test_processes_with_one_device_each(asked: list[Any], tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.touch()
    found = calibrate_processes(script, ["{devices}"], 2)
    assert found.measurement == Measurement(2, 32, 1.5, 0.3, processes=2)
    assert found.measured == 1.0
    assert asked == [
        ("cost", 1, ["1"], 2),
        ("parts", 1, ["1"], 32, []),
        ("parts", 1, ["1"], 32, []),
        ("exchange", 1, [], 2),
        ("time", 1, ["1"], 2),
    ]


def test_processes_that_train_by_themselves(asked: list[Any], tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.touch()
    with pytest.raises(ArgumentError, match=r"trains 1 replica\(s\) in each of 2.*HINT: use MultiWorkerMirrored"):
        calibrate_processes(script, ["--alone"], 2)


def test_the_table() -> None:
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(table([Comparison(Measurement(2, 32, 0.001, 0.0005), 0.002)]))
    last = captured.get().splitlines()[-1]
    assert last.split() == "2 1 32 1.000 ms 0.500 ms 1.500 ms 2.000 ms -25%".split()


def test_computing_for_other_numbers_of_examples() -> None:
    def one(rows: int, seconds: float) -> Comparison:
        return Comparison(Measurement(1, rows, seconds, 0.0), 1.0)

    measured = interpolated([one(64, 4.0), one(16, 2.0)])
    assert [measured(rows) for rows in (1, 16, 40, 64, 128)] == [2.0, 2.0, 3.0, 4.0, 8.0]


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"there is no script .*HINT: give a Python program, or what --save wrote"):
        script_cost(tmp_path / "none.py", [])


def test_this_machine_is_no_h200() -> None:
    assert not is_here(DEVICES["h200"])
