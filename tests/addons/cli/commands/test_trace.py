"""The table that `jaxtribute trace` prints, and where it says the files are."""

from pathlib import Path
from typing import Any

import pytest

from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.profiling import record as recording
from jaxtribute.profiling import Breakdown, Shares


def test_the_table_and_the_files(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: dict[str, Any] = {}

    def record(script: Path, arguments: list[str], **options: Any) -> tuple[Breakdown, Path]:
        asked.update(options, script=script, arguments=arguments)
        shares = Shares(0.003, 0.001, 0.0, 0.001)
        return Breakdown(7, shares, {"CPU:0": shares}, (("dot", 0.003, False),)), Path("there/plugins")

    monkeypatch.setattr(recording, "record", record)
    assert main(["trace", "--steps", "7", "--out", "there", "script.py", "--steps", "9"]) == 0
    assert asked == {
        "script": Path("script.py"),
        "arguments": ["--steps", "9"],
        "directory": Path("there"),
        "steps": 7,
        "skip": 3,
    }
    printed = capsys.readouterr().out
    assert "A step: 5.000 ms, mean of 7" in printed
    assert "there/plugins/perfetto_trace.json.gz" in printed
    assert "tensorboard --logdir there" in printed
