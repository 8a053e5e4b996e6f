"""What is done with a script in a process of its own, done here in this one."""

import json
from pathlib import Path
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute.planning import machine
from jaxtribute.planning import script as scripts
from jaxtribute.planning.cost import StepCost
from jaxtribute.planning.machine import time_alone
from planning.scripts import write


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (machine, scripts):
        monkeypatch.setattr(module, "_LEAST_S", 0.001)
        monkeypatch.setattr(module, "_ROUNDS", 2)


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_cost(tmp_path: Path) -> None:
    scripts.main("cost", str(tmp_path / "cost.json"), str(write(tmp_path)))
    cost = StepCost.load(tmp_path / "cost.json")
    assert (cost.name, cost.batch, cost.replicas) == ("training.py", 24, 8)


def test_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = tmp_path / "request.json"
    wanted = [
        ["all-reduce", [2048, 4]],
        ["all-gather", [4096]],
        ["reduce-scatter", [4096]],
        ["collective-permute", [64]],
    ]
    request.write_text(json.dumps({"devices": 2, "rows": 12, "collectives": wanted}))
    scripts.main("parts", str(request), str(write(tmp_path)))
    found = answer(capsys)
    assert 0 < found["compute"] < 10
    assert 0 <= found["collectives"] < 10
    request.write_text(json.dumps({"devices": 1, "rows": 24, "collectives": []}))
    scripts.main("parts", str(request), str(write(tmp_path)))
    assert answer(capsys)["collectives"] == 0


def test_devices_that_share_cores_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def timed(call: Any, wait_every: int = 8) -> float:
        waits.append(wait_every)
        call()
        return 1.0

    monkeypatch.setattr(machine, "timed", timed)
    for cores in (1, 2):
        monkeypatch.setattr(machine, "_cores", lambda cores=cores: cores)
        found = scripts.parts(write(tmp_path), [], {"devices": 2, "rows": 12, "collectives": []})
        assert found == {"compute": 1.0, "collectives": 0.0}
    assert waits == [1, 8]


def test_exchange(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a cluster it measures the devices of this process."""
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"collectives": [["all-reduce", [64]]]}))
    scripts.main("exchange", str(request), str(tmp_path / "not_run.py"))
    assert answer(capsys)["collectives"] >= 0


def test_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scripts.main("time", "-", str(write(tmp_path)))
    found = answer(capsys)
    assert found["batch"] == 24
    assert 0 < found["seconds"] < 10


def test_a_script_that_fixes_its_devices(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("jd.MirroredStrategy()", 'jd.MirroredStrategy(["CPU:0", "CPU:1"])'))
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"devices": 1, "rows": 24, "collectives": []}))
    with pytest.raises(jd.errors.ArgumentError, match=r"makes 2 replicas where it was offered one device. HINT"):
        scripts.main("parts", str(request), str(path))
    assert callable(time_alone)
