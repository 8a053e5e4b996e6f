"""A rehearsal of a preemption: a program is run, told to end as a machine's owner would, and started again."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtribute._src.addons.testing.faults import VARIABLE
from jaxtribute.errors import DeadlineError, JaxtributeError
from jaxtribute.extending import ExitCode, read_all

_TAIL_LINES = 30


@dataclass(frozen=True)
class Rehearsal:
    """Result of the rehearsal.

    Attributes:
      saved: whether a complete, readable checkpoint came out.
      resumed: whether the program, started again, went on from it.
      checkpoint: its path, if there is one.
      runs: calls of `PreemptionCheckpointHandler.run` until then.
      problem: what went wrong, with a remedy; empty if nothing did.
      output: what the program printed last.
    """

    saved: bool
    resumed: bool
    checkpoint: str | None
    runs: int
    problem: str
    output: str

    @property
    def well(self) -> bool:
        """True if the program survives a preemption."""
        return self.saved and self.resumed


def rehearse(
    script: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    workers: int = 2,
    devices: int | None = 1,
    step: int | None = None,
    timeout_s: float = 300.0,
    seed: int = 0,
) -> Rehearsal:
    """Runs a program under the launcher, sends SIGTERM to one of its workers, and starts it again.

    The program must make a `PreemptionCheckpointHandler`, and should save to a folder for rehearsals, which is left as
    it is at the end. The second start is told to end, too, once it has done a step.

    Args:
      script: a Python file.
      arguments: its arguments.
      workers: processes.
      devices: logical CPU devices a process; None leaves it what it finds.
      step: the call of a compiled function at which the signal comes; by default some of the first ten.
      timeout_s: seconds for each of the two runs.
      seed: decides by chance on the worker and the step.

    Raises:
      DeadlineError: a run did not end in time.
    """
    rng = random.Random(seed)
    rank, at = rng.randrange(workers), step if step is not None else rng.randint(1, 10)

    def run(when: int) -> tuple[int, str, list[dict[str, Any]]]:
        # 15 is SIGTERM, by which owners of machines announce that they take them back.
        faults = [{"kind": "kill", "number": 15, "rank": rank, "step": when}]
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report"
            code, output = _launch(script, arguments, workers, devices, report, faults, timeout_s)
            events = report.read_text().splitlines() if report.exists() else []
        return code, output, list(map(json.loads, events))

    code, output, events = run(at)
    saved = [event for event in events if event["event"] == "saved"]
    if not saved:
        problem = _why_not(code, events, f"SIGTERM to worker {rank} at step {at}")
        return Rehearsal(False, False, None, 0, problem, output)
    path, runs = saved[0]["checkpoint"], saved[0]["runs"]
    if problem := _unreadable(path):
        return Rehearsal(False, False, path, runs, problem, output)
    if problem := _wrong_end(code, len(saved)):
        return Rehearsal(True, False, path, runs, problem, output)
    # It only has to show where it began, so it is told to end after its first step.
    _, output, events = run(1)
    problem = _began_elsewhere(events, path, runs)
    return Rehearsal(True, not problem, path, runs, problem, output)


def _launch(
    script: str | os.PathLike[str],
    arguments: Sequence[str],
    workers: int,
    devices: int | None,
    report: Path,
    faults: Sequence[dict[str, Any]],
    timeout_s: float,
) -> tuple[int, str]:
    """Runs the program once; returns the exit code and the end of the output."""
    command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers", str(workers)]
    command += [] if devices is None else ["--devices-per-worker", str(devices)]
    environment = os.environ | {"JAXTRIBUTE_PREEMPTION_REPORT": str(report), VARIABLE: json.dumps(faults)}
    try:
        done = subprocess.run(
            [*command, str(script), *arguments],
            # A program that asks something is told at once that there is no answer.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        # Until here it may be bytes, though text was asked for.
        text = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        raise DeadlineError(
            f"{script} had not ended {timeout_s:g} s after its start. HINT: give more time, or a smaller problem; it "
            f"printed:\n{_tail(text)}"
        ) from None
    return done.returncode, _tail(done.stdout)


def _why_not(code: int, events: Sequence[dict[str, Any]], where: str) -> str:
    """Reason why there is no checkpoint."""
    if not events:
        return (
            f"{where}, exit code {code}: the program made no PreemptionCheckpointHandler before. HINT: make one before "
            "the first step; see the guide on preemption."
        )
    if code == 0:
        return (
            f"{where}: the program went on to its end. HINT: run the training steps by handler.run, or call "
            "handler.save_checkpoint_if_preempted between them; rehearse with more steps if it was too short."
        )
    return f"{where}: no checkpoint was saved, exit code {code}. HINT: see what the program printed last."


def _wrong_end(code: int, saves: int) -> str:
    if saves > 1:
        return f"{saves} checkpoints were saved instead of one. HINT: make one handler only, without a grace period."
    if code != ExitCode.RESUME:
        return (
            f"the program saved and ended with exit code {code} instead of {ExitCode.RESUME}, on which the launcher "
            "starts it again. HINT: let the SystemExit of the handler pass."
        )
    return ""


def _began_elsewhere(events: Sequence[dict[str, Any]], path: str, runs: int) -> str:
    started = next((event for event in events if event["event"] == "start"), None)
    if started is not None and (started["checkpoint"], started["runs"]) == (path, runs):
        return ""
    found = "nothing" if started is None else f"{started['checkpoint']} after {started['runs']} runs"
    return (
        f"started again, the program began with {found} instead of {path} after {runs} runs. HINT: use the same "
        "folder in every run, and loop from handler.total_run_calls on."
    )


def _unreadable(path: str) -> str:
    """Reads the whole checkpoint; returns what is wrong with it."""
    try:
        read_all(Path(path))
    except (JaxtributeError, OSError, ValueError) as error:
        return f"{path} cannot be read: {error}. HINT: see that the folder is on a file system that all workers see."
    return ""


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
