"""`jaxtribute bench` from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute._src.addons.bench import suite
from jaxtribute._src.addons.cli.main import main
from jaxtribute.bench import Report


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def run(strategy: jd.Strategy, parts: Any, **options: Any) -> Report:
        calls.append((type(strategy).__name__, tuple(parts), options))
        return Report("here", notes=["measured"])

    monkeypatch.setattr(suite, "run", run)
    return calls


def test_tables_and_a_file(asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "numbers.json"
    assert main(["bench", "--only", "step,input", "--rounds", "3", "--json", str(path)]) == 0
    assert asked == [
        ("MirroredStrategy", ("step", "input"), {"quick": False, "rounds": 3, "directory": None}),
    ]
    assert capsys.readouterr().out.split() == ["here", "measured"]
    assert json.loads(path.read_text())["notes"] == ["measured"]


def test_json_alone(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["where"] == "here"
    assert asked[0][1] == suite.PARTS


def test_unknown_parts(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--only", "step,disk"]) == 2
    assert "--only disk: choose from collectives, step, input, checkpoint" in capsys.readouterr().err
    assert not asked


def test_devices_that_cannot_be_had(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--devices", "3"]) == 2
    assert "already started with 8" in capsys.readouterr().err
