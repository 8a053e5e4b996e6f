"""Failures of a worker, over and over: seconds until the job has ended, and whether the right worker and line are told.

    python -m benchmarks.faults [--quick] [--trials 20] [--case raise] [--json FILE]

Two workers run `tests/support/worker_faults.py` under the launcher; worker 1 does something wrong in its fourth step.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import ROOT

PROGRAM = ROOT / "tests" / "support" / "worker_faults.py"
STALL_S = 3
"""The deadline that the stalls are held against."""
DEADLINE_S = 120.0


@dataclass
class Case:
    """A fault.

    Attributes:
      name: as `worker_faults.py` calls it.
      env: environment variables of the job.
      bar_s: the longest until the job has ended, or of a stall until it is told.
      named: all of these must be in the output; line marks of the program are given as `@mark`.
    """

    name: str
    named: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    bar_s: float | None = None


_STALL = {"JAXTRIBUTE_TIMEOUT_S": str(STALL_S)}
_LEDGER = {"JAXTRIBUTE_DEBUG": "collectives", "JAXTRIBUTE_TIMEOUT_S": "30"}
CASES = (
    Case("raise", ("rank 1 ended with exit code 1: ValueError: the fault of worker 1",), bar_s=5),
    Case("stall-before", ("worker 1 (127.0.0.1", "forever()"), _STALL, STALL_S + 2),
    Case("stall-inside", ("worker 1 (127.0.0.1", "forever()"), _STALL, STALL_S + 2),
    Case("stall-after", ("worker 1 (127.0.0.1", "forever()"), _STALL, STALL_S + 2),
    Case("stall-input", ("worker 1 (127.0.0.1", "next(data)"), _STALL, STALL_S + 2),
    Case("stall-save", ("worker 1 (127.0.0.1", "forever()"), _STALL, STALL_S + 2),
    Case(
        "swapped", ("about to run different collectives", "@# the first sum", "@# the second sum, too early"), _LEDGER
    ),
    Case("missing", ("worker 1 (127.0.0.1", "@value = float(call(x))"), _LEDGER),
    Case("extra", ("worker 1 (127.0.0.1", "@value = float(call(x))"), _LEDGER),
    Case("shape", ("the workers do different things", "@x = strategy.exp", "@value = float(call(x))"), _LEDGER),
)


@dataclass
class Trials:
    """What happened in the trials of one case.

    Attributes:
      case: its name.
      until: what the bar is about: `end`, or `told`.
      told_s: seconds from the fault until the worker or the lines were named, of trials in which they were.
      seconds: from the fault to the end of the job.
      ended: how many ended with an error.
      named: how many named the worker, or the lines.
      bar_s: the longest it may take.
      odd: the output of the first trial in which something was not as it should be.
    """

    case: str
    bar_s: float | None
    until: str = "end"
    told_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    ended: int = 0
    named: int = 0
    odd: str = ""


def line(mark: str) -> str:
    """Where the program has a text, as messages say it."""
    number = next(i for i, one in enumerate(PROGRAM.read_text().splitlines(), 1) if mark in one)
    return f"{PROGRAM}:{number}"


def trial(case: Case, wanted: list[str]) -> tuple[int, str, float, float]:
    """Exit code, output, and seconds from the fault until all that is wanted was told, and until the end."""
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder) / "fault"
        command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers", "2", str(PROGRAM), case.name]
        env = {**os.environ, **case.env, "JAXTRIBUTE_FAULT_MARKER": str(marker), "COLUMNS": "1000"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        timer = threading.Timer(DEADLINE_S, process.terminate)  # the launcher takes its workers along
        timer.start()
        output, told = "", math.inf
        start = time.time()
        for text in process.stdout:
            output += text
            if told == math.inf and all(one in output for one in wanted):
                told = time.time()
        code = process.wait(DEADLINE_S)
        timer.cancel()
        began = marker.stat().st_mtime if marker.exists() else start
        return code, output, told - began, time.time() - began


def run(case: Case, count: int, say: Callable[[str], None]) -> Trials:
    """All trials of one case."""
    found = Trials(case.name, case.bar_s, "told" if case.name.startswith("stall") else "end")
    wanted = [line(text[1:]) if text.startswith("@") else text for text in case.named]
    for number in range(count):
        code, output, told_s, end_s = trial(case, wanted)
        named = told_s < math.inf
        found.seconds.append(end_s)
        found.told_s += [told_s] if named else []
        found.ended += code != 0
        found.named += named
        if not (code and named) and not found.odd:
            found.odd = output[-6000:]
        say(f"{case.name} {number + 1}/{count}: told after {told_s:.1f} s, ended after {end_s:.1f} s with {code}")
    return found


def show(all_found: list[Trials], count: int) -> None:
    """Prints a table."""
    table = Table("fault of worker 1", "ended", "named", "told, median", "end, median", "longest", "bar", "met")
    for one in all_found:
        seconds = one.seconds if one.until == "end" else one.told_s
        longest = max(seconds, default=math.inf)
        good = one.ended == one.named == count and (one.bar_s is None or longest <= one.bar_s)
        bar = "" if one.bar_s is None else f"<= {one.bar_s:g} s"
        told = f"{statistics.median(one.told_s):.1f} s" if one.told_s else "never"
        end = f"{statistics.median(one.seconds):.1f} s"
        figures = told, end, f"{longest:.1f} s", bar and f"{bar} ({one.until})", "yes" if good else "no"
        table.add_row(one.case, f"{one.ended}/{count}", f"{one.named}/{count}", *figures)
    console = Console(width=110)
    console.print(table)
    for one in all_found:
        if one.odd:
            console.print(f"[bold]{one.case}[/], a trial that was not as it should be:")
            console.print(one.odd, markup=False, highlight=False)


def main() -> int:
    """Runs the trials and reports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="all by default")
    parser.add_argument("--quick", action="store_true", help="one trial of each")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    count = 1 if arguments.quick else arguments.trials
    cases = [case for case in CASES if not arguments.case or case.name in arguments.case]
    found = [run(case, count, lambda text: print(text, file=sys.stderr, flush=True)) for case in cases]
    show(found, count)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(
            json.dumps({"trials": count, "cases": [asdict(one) for one in found]}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
