"""Processes that measure, and those that fail."""

import subprocess
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from jaxtribute._src.tools.planning import machine
from jaxtribute.errors import DeadlineError, ProcessFailedError

MODULE = """
import os, sys, time
if sys.argv[1] == "fail":
    print("before"); raise ValueError("mine")
if sys.argv[1] == "hang":
    time.sleep(60)
print("noise")
print('{"devices": "%s", "pool": "%s"}' % (os.environ["JAXTRIBUTE_CPU_DEVICES"], os.environ.get("PJRT_NPROC")))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "measured_by_a_test.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PJRT_NPROC", "16")
    return "measured_by_a_test"


@pytest.mark.slow
def test_a_process_gets_its_devices_and_a_pool_that_fits(module: str) -> None:
    assert machine.run_module(module, ["run"], 3) == {"devices": "3", "pool": "None"}


@pytest.mark.slow
def test_processes_that_form_a_cluster(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is played by a module that prints what each of two workers would."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> CompletedProcess[str]:
        commands.append(command[1:])
        return CompletedProcess(command, 0, '[1] {"rank": 1}\n[0] noise\n[0] {"rank": 0}\n[1] the end\n', "")

    monkeypatch.setattr(subprocess, "run", run)
    answer = machine.run_module(module, ["run"], 1, workers=2)
    assert commands == [["-m", "jaxtribute.cli", "launch", "--workers", "2", "-m", module, "run"]]
    assert answer == {"rank": 0}


@pytest.mark.slow
def test_a_process_that_fails_shows_what_it_printed(module: str) -> None:
    with pytest.raises(ProcessFailedError, match=r"(?s)on 2 devices ended with 1. HINT.*before.*ValueError: mine"):
        machine.run_module(module, ["fail"], 2)


@pytest.mark.slow
def test_a_process_that_hangs(module: str) -> None:
    with pytest.raises(DeadlineError, match=r"has not ended in 0 s|has not ended in 1 s"):
        machine.run_module(module, ["hang"], 2, deadline_s=0.5)
