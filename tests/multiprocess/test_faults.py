"""What the others say when one worker fails, hangs or goes another way: real processes under the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import worker_programs
from jaxtribute.testing import MultiProcessRunner

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[1] / "support" / "worker_faults.py"


def outcome(case: str, **variables: str) -> tuple[int, str, float]:
    """Exit code, output and seconds of the faulty program with two workers."""
    command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers", "2", str(PROGRAM), case]
    start = time.monotonic()
    # The timeout is the test's deadline; the launcher takes its workers along.
    done = subprocess.run(
        command, check=False, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr, time.monotonic() - start


def test_an_exception_is_told_once_with_its_rank() -> None:
    code, text, _ = outcome("raise")
    assert code == 1, text
    raised = [line for line in text.splitlines() if "raise ValueError(" in line]
    assert sum(line.startswith("[1]") for line in raised) == 1, text
    # The other one is ended by its watch, which leaves the stack to worker 1, or its own step raises, with that stack.
    assert sum(line.startswith("[0]") for line in raised) <= 1, text
    assert len(raised) <= 2, text
    assert "rank 1 ended with exit code 1: ValueError: the fault of worker 1" in text


@pytest.mark.parametrize(("case", "limit"), [("stall-before", 3), ("stall-input", 3)])
def test_a_worker_that_hangs_is_named_with_its_stack(case: str, limit: int) -> None:
    code, text, _ = outcome(case, JAXTRIBUTE_TIMEOUT_S=str(limit))
    assert code != 0, text
    waits = "holds up step" if case != "stall-input" else "waited 3 s for worker 1"
    assert waits in text, text
    where = text[text.index("worker 1 (127.0.0.1") :]
    assert "last seen in step" in where, text
    assert "forever()" in where if case != "stall-input" else "next(data)" in where, text


def test_a_worker_with_a_program_of_its_own_is_named() -> None:
    """At once, and not when the deadline of ten minutes has passed; by both, as errors that a program may handle."""
    code, text, seconds = outcome("stall-inside")
    assert code != 0, text
    assert seconds < 120, text
    assert "is in the first run of stuck_step, after step 4, called at " in text, text
    assert "is in another call, last seen in step 4 of step, at " in text, text


@pytest.mark.parametrize("case", ["swapped", "extra"])
def test_the_ledger_names_both_lines(case: str) -> None:
    code, text, _ = outcome(case, JAXTRIBUTE_DEBUG="collectives", JAXTRIBUTE_TIMEOUT_S="30")
    assert code == 1, text
    source = PROGRAM.read_text().splitlines()

    def line(mark: str) -> str:
        return f"{PROGRAM}:{next(i for i, one in enumerate(source, 1) if mark in one)}"

    if case == "swapped":
        assert "about to run different collectives" in text, text
        assert "of worker 0 (127.0.0.1:" in text
        assert line("# the first sum") in text, text
        assert line("# the second sum, too early") in text, text
    else:
        assert "step 41 of" in text, text
        assert "has ended its program after step 40" in text, text
        assert text.count(line("value = float(call(x))")) >= 2, text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_skips_a_step_is_named(rank: int) -> None:
    code, text, _ = outcome(f"skip-{rank}")
    assert code != 0, text
    told = text.splitlines()[-1]
    assert f"worker {1 - rank} " in told, text
    assert f"worker {rank} " in told, text
    assert "ended its program after step" in told, text
    assert "make the same calls as often as the others" in text, text


def test_a_job_that_stood_still_for_longer_than_a_silence_goes_on(tmp_path: Path) -> None:
    """As on a machine that was asleep: all stop, and nobody is lost."""
    with MultiProcessRunner(workers=2, env={"JAXTRIBUTE_SILENCE_S": "3"}, timeout_s=200) as runner:
        with ThreadPoolExecutor() as pool:
            job = pool.submit(runner.run, worker_programs.steps_until, (str(tmp_path),))
            while not all((tmp_path / f"going-{rank}").exists() for rank in range(2)):
                assert not job.done(), job.result()
                time.sleep(0.02)
            pids = runner.pids
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in pids:
                    os.kill(pid, number)
                if number == signal.SIGSTOP:
                    time.sleep(8.0)
            (tmp_path / "end").touch()
            first, second = job.result(200)
        assert first == second > 1
        assert all("stood still for" in runner.output(rank) for rank in range(2))
