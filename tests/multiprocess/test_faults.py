"""What the others say when one worker fails, hangs or goes another way: real processes under the launcher."""

from __future__ import annotations

import os
import re
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


@pytest.mark.parametrize("case", ["uneven-skip-0", "uneven-skip-1", "uneven-extra-0", "uneven-extra-1"])
def test_a_worker_that_gloo_aborts_is_told_with_the_steps_of_all(case: str) -> None:
    """A step that one worker takes alone, where the next step's arrays have another size."""
    code, text, seconds = outcome(case, JAXTRIBUTE_TIMEOUT_S="120")
    assert code == 134, text
    assert seconds < 110, text
    told = text[text.rindex("jaxtribute launch: rank ") :]
    assert "was killed by SIGABRT, as its collective does not fit to those of the others" in told, text
    batches = dict[int, int]()
    steps = dict[int, int]()
    for rank in range(2):
        found = re.search(rf"rank {rank}: step (\d+) of step, first called at {PROGRAM}:\d+, after (\d+) batches", told)
        assert found is not None, text
        steps[rank], batches[rank] = int(found[1]), int(found[2])
    # The one that has skipped a step has taken fewer of as many batches, or as many of more; the other way round for an
    # additional one.
    ahead = {rank: steps[rank] - batches[rank] for rank in range(2)}
    more = int(case[-1]) if "extra" in case else 1 - int(case[-1])
    assert ahead[more] == ahead[1 - more] + 1, text
    assert "HINT: every worker must make the same calls as often as the others" in told, text
    assert "JAXTRIBUTE_DEBUG=collectives finds the first call that differs" in told, text


def test_the_ledger_finds_what_gloo_would_abort() -> None:
    code, text, _ = outcome("uneven-skip-1", JAXTRIBUTE_DEBUG="collectives", JAXTRIBUTE_TIMEOUT_S="120")
    assert code == 1, text
    assert "the workers are about to run different collectives" in text, text
    assert text.count(f"step, called at {PROGRAM}:") >= 2, text


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (
            "own-shape",
            "This worker calls own_argument with float32[5] for the first time; it has called it before with ",
        ),
        ("own-name", "This worker calls own_argument with float32[4] for the first time."),
    ],
)
def test_a_worker_whose_step_is_another_program_is_told_at_once(case: str, told: str) -> None:
    """The others run the program that they have, and come to no comparison: they would wait for the deadline."""
    code, text, seconds = outcome(case)
    assert code == 1, text
    assert seconds < 120, text
    end = text[text.rindex("jaxtribute launch: rank 1 ended with exit code 1: ") :]
    assert "is in the first run of own_argument, after step 4, called at " in end, text
    assert "runs the step as it was made before, last seen in step 4 of own_argument, at " in end, text
    assert "HINT: each step needs arguments of the same shapes" in end, text
    assert told in end, text


def test_a_batch_with_fewer_rows_than_the_others_have_is_told_at_once() -> None:
    code, text, seconds = outcome("batch")
    assert code == 1, text
    assert seconds < 120, text
    assert "InputError: at step 3 the batches of the workers have [2, 1] rows" in text.splitlines()[-1], text


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
