"""Processes that measure, and those that fail."""

from pathlib import Path

import pytest

from jaxtribute.errors import DeadlineError, ProcessFailedError
from jaxtribute.planning import machine

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


def test_a_process_gets_its_devices_and_a_pool_that_fits(module: str) -> None:
    assert machine.run_module(module, ["run"], 3) == {"devices": "3", "pool": "None"}


def test_a_process_that_fails_shows_what_it_printed(module: str) -> None:
    with pytest.raises(ProcessFailedError, match=r"(?s)on 2 devices ended with 1. HINT.*before.*ValueError: mine"):
        machine.run_module(module, ["fail"], 2)


def test_a_process_that_hangs(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DEADLINE_S", 0.5)
    with pytest.raises(DeadlineError, match=r"has not ended in 0 s|has not ended in 1 s"):
        machine.run_module(module, ["hang"], 2)
