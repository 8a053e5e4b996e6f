"""TensorFlow programs run after `jaxtribute migrate --write`, and end with the losses that TensorFlow gives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import in_threads
from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.compat.migrate.scan import scan
from processes import run_python

HERE = Path(__file__).parent
RECORDED: dict[str, dict[str, Any]] = json.loads((HERE / "tensorflow.json").read_text())
TOLERANCE = 1e-4


def migrated(name: str, folder: Path) -> Path:
    path = folder / f"{name}.py"
    path.write_bytes((HERE / "scripts" / f"{name}.py").read_bytes())
    assert main(["migrate", "--write", str(path)]) == 0
    return path


def last_line(output: str) -> dict[str, Any]:
    return json.loads(output.strip().split("\n")[-1])


def close(seen: dict[str, Any], recorded: dict[str, Any]) -> None:
    assert seen.keys() == recorded.keys()
    for name, value in recorded.items():
        np.testing.assert_allclose(seen[name], value, atol=TOLERANCE, rtol=0, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["custom_loop", "central_storage", "parameter_server"])
def test_program_ends_with_the_loss_of_tensorflow(name: str, tmp_path: Path) -> None:
    """Servers and workers are threads."""
    program = migrated(name, tmp_path)
    close(last_line(run_python(Path(in_threads.__file__), str(program))), RECORDED[name])


@pytest.mark.slow
def test_workers_end_with_the_losses_of_tensorflow(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = migrated("multi_worker", tmp_path)
    capfd.readouterr()
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    assert main(["launch", "--workers", "2", "--devices-per-worker", "1", str(program)]) == 0
    results = dict(line.split(" ", 1) for line in capfd.readouterr().out.split("\n") if "losses" in line)
    assert sorted(results) == ["[0]", "[1]"]
    for output in results.values():
        close(json.loads(output), RECORDED["multi_worker"])


def test_no_program_needs_what_is_not_there() -> None:
    for name in RECORDED:
        report = scan((HERE / "scripts" / f"{name}.py").read_text())
        assert not [finding for finding in report.left() if "planned" in finding.advice]


@pytest.mark.parametrize("name", ["custom_loop", "central_storage"])
def test_only_imports_gradients_and_numpy_change(name: str, tmp_path: Path) -> None:
    before = (HERE / "scripts" / f"{name}.py").read_text().split("\n")
    after = migrated(name, tmp_path).read_text().split("\n")
    gone = [line for line in before if line not in after]
    assert all(
        any(word in line for word in ("import tensorflow", "GradientTape", "tape.", ".numpy()")) for line in gone
    )


def test_every_script_is_recorded() -> None:
    assert sorted(RECORDED) == sorted(path.stem for path in (HERE / "scripts").glob("*.py"))
