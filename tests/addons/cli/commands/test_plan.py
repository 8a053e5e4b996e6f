"""`jaxtribute plan` from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.planning import calibration
from jaxtribute._src.addons.planning.calibration import Comparison
from jaxtribute._src.addons.planning.probes import Parts
from planning.scripts import write
from planning.test_cost import COST


@pytest.fixture
def saved(tmp_path: Path) -> str:
    COST.save(tmp_path / "step.json")
    return str(tmp_path / "step.json")


@pytest.mark.slow
def test_a_script_from_beginning_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A process looks at the script; the rest is arithmetic."""
    out, step = str(tmp_path / "curve.png"), str(tmp_path / "step.json")
    options = [
        "--hosts",
        "4",
        "--devices",
        "3",
        "--device-kind",
        "h200",
        "--link",
        "12.5GB/s,20us/host",
        "--most",
        "16",
    ]
    options += ["--examples", "100", "--plot", out, "--save", step]
    assert main(["plan", *options, str(write(tmp_path))]) == 0
    printed = capsys.readouterr().out
    assert "training.py: batch 24 on 2 replica(s)" in printed
    assert "4 host(s) of 3 h200, nvlink within, 12.5GB/s,20us/host between" in printed
    lines = [line.strip("> ").split()[:3] for line in printed.splitlines() if line.strip("> ")[:1].isdigit()]
    assert lines[1:] == [[n, "24", str(-(-24 // int(n)))] for n in ("1", "2", "3", "6", "12")]
    assert "An epoch of 100 examples: 5 steps" in printed
    assert "4 on each device" not in printed
    assert Path(out).stat().st_size > 10_000
    assert main(["plan", "--json", "--device-kind", "h200", step]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["prediction"]["devices"] == 8
    assert [one["devices"] for one in answer["curve"]][-1] == 4096


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--shapes"], ["--fit", "--topology", "cpu:2"]])
def test_a_script_that_refuses_its_arguments_is_named_and_no_module_that_runs_it(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "wants.py"
    script.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    assert main(["plan", *options, str(script), "--mine"]) == 2
    told = capsys.readouterr().err
    assert f"jaxtribute plan: {script} on " in told
    assert "usage: wants.py [-h]\nwants.py: error: unrecognized arguments: --mine" in told
    assert "_src" not in told


def test_what_does_not_fit_is_refused(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--device-kind", "tpu-v5e", "--batch", str(10**11), saved]) == 1
    printed = capsys.readouterr()
    assert "does not fit" in printed.out
    assert "and a tpu-v5e has 16.0 GB. HINT" in printed.err


def test_a_batch_for_each_device_and_an_epoch(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", "--device-kind", "a100", "--weak", "--examples", "1000", saved]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["prediction"]["batch"] == 64 * 8
    assert answer["epoch"]["steps"] == 2


def test_calibration(monkeypatch: pytest.MonkeyPatch, saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    def calibrate(script: Path, arguments: list[str], counts: list[int]) -> Any:
        assert (script, arguments, counts) == (Path("train.py"), ["--devices", "{devices}"], [1, 2])
        return COST, [Comparison(n, 64 // n, Parts(0.0005, 0.001, 0.0005, 0.001), 0.003) for n in counts]

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    assert main(["plan", "--calibrate", "--local", "2,1,2", "train.py", "--devices", "{devices}"]) == 0
    assert "On this machine" in capsys.readouterr().out

    def calibrate_processes(script: Path, arguments: list[str], workers: int) -> Any:
        return Comparison(workers, 32, Parts(0.0005, 0.001, 0.0005, 0.004), 0.006, workers)

    monkeypatch.setattr(calibration, "calibrate_processes", calibrate_processes)
    assert main(["plan", "--calibrate", "--local", "1,2", "--workers", "2", "train.py", "--devices", "{devices}"]) == 0
    assert "6.000 ms" in capsys.readouterr().out
    monkeypatch.setattr(calibration, "is_here", lambda device: True)
    options = ["--calibrate", "--local", "1,2", "--json", "--device-kind", "h200"]
    assert main(["plan", *options, "train.py", "--devices", "{devices}"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["devices"] for one in answer["local"]] == [1, 2]
    assert answer["curve"][0]["compute"] == pytest.approx(0.002), "as measured here"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device-kind", "abacus"], "no device is called 'abacus'"),
        (["--device-kind", "h200", "--link", "string"], "no link is called 'string'"),
        (["--calibrate"], "runs a script, and"),
        (["--shapes"], "--shapes was given with"),
        (["--shapes", "--calibrate"], "--shapes was given with --calibrate"),
        (["--shapes", "--topology", "v5e:2x2"], "--shapes was given with --topology"),
    ],
)
def test_errors(saved: str, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main(["plan", *options, saved]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("local", ["0", "a,b", ""])
def test_numbers_of_devices(local: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--calibrate", "--local", local, "train.py"]) == 2
    assert "HINT: --local 1,2,4,8" in capsys.readouterr().err


def test_a_hint_where_nothing_is_asked(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", saved]) == 0
    assert "HINT: --device-kind h200" in capsys.readouterr().out


def test_the_lists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--list"])
    printed = capsys.readouterr().out
    assert "h200" in printed
    assert "ethernet-10g" in printed
