"""The doctor reads the library's own settings as the library does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxtribute._src.addons.doctor import checks
from jaxtribute._src.addons.doctor.report import Level, look
from jaxtribute._src.core.environment import READERS
from jaxtribute._src.misspelt import SETTINGS

_FREE = {
    "JAXTRIBUTE_RUN",  # any folder
    "JAXTRIBUTE_SEARCHING",  # whether it is there
    *(f"JAXTRIBUTE_{name}" for name in ("LAUNCHER", "LOCAL_CLUSTER", "PJRT_NPROC", "PREEMPTION_REPORT", "RAY_TASK")),
    # Set by the library for its own processes, which take them away as they start.
    *(f"JAXTRIBUTE_{name}" for name in ("LAST_CALL", "RESTART", "RUN_TASK", "SLURM_GPUS", "SPARE")),
}


def test_right_settings_are_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SILENCE_S": "5", "STRAGGLERS_S": "0", "DEBUG": "collectives", "MEMORY": "1GiB"}.items():
        monkeypatch.setenv(f"JAXTRIBUTE_{name}", value)
    assert list(checks.check_settings(look({}))) == []


def test_each_setting_is_read_or_free() -> None:
    list(checks.check_settings(look({})))
    assert READERS.keys() | _FREE == SETTINGS
    assert not READERS.keys() & _FREE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BIND_ADDRESS", "nowhere"),
        ("CPU_DEVICES", "abc"),
        ("DEBUG", "all"),
        ("FAULTS", "[3]"),
        ("INCARNATION", "x"),
        ("MEMORY", "much"),
        ("SILENCE_S", "abc"),
        ("STRAGGLERS_S", "-1"),
        ("TIMEOUT_S", "0"),
        ("TRACK", "neptune"),
        ("TUNE_ALLOCATOR", "maybe"),
    ],
)
def test_a_wrong_setting_is_an_error_with_its_fix(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"JAXTRIBUTE_{name}", value)
    (finding,) = checks.check_settings(look({}))
    assert (finding.level, finding.title) == (Level.ERROR, "settings")
    assert f"JAXTRIBUTE_{name}" in finding.text
    assert value in finding.text
    assert finding.fix


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CPU_DEVICES", "FAULTS"])
def test_the_doctor_starts_where_programs_do_not(name: str) -> None:
    command = [sys.executable, "-m", "jaxtribute", "doctor"]
    environment = os.environ | {f"JAXTRIBUTE_{name}": "abc", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"ERROR settings: JAXTRIBUTE_{name}='abc' is no" in done.stdout
    assert "devices: " in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("command", "status"), [("doctor", 1), ("--version", 0)])
def test_commands_that_train_nothing_are_no_part_of_a_run(command: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for run in (tmp_path / "file" / "run", tmp_path / "run"):
        environment = os.environ | {"JAXTRIBUTE_RUN": str(run), "JAX_PLATFORMS": "cpu"}
        words = [sys.executable, "-m", "jaxtribute", command]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stdout + done.stderr
        assert not run.exists()
        if run.parent != tmp_path:
            assert done.returncode == status, done.stdout
            assert ("ERROR settings: JAXTRIBUTE_RUN" in done.stdout) == (command == "doctor")


def test_a_name_that_is_nearly_a_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXTRIBUTE_TIMOUT_S", "3")
    (finding,) = checks.check_settings(look({}))
    assert (finding.level, finding.text) == (Level.WARNING, "JAXTRIBUTE_TIMOUT_S is not read")
    assert "JAXTRIBUTE_TIMEOUT_S" in finding.fix
