"""100 MB of a rank's output through `jaxtribute launch` beside a plain pipe, and the end of a job that nobody reads.

python -m benchmarks.launcher_output [--rounds 5] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.__main__ import machine

BAR = 2.0
SIZE = 100_000_000
STALLED_S = 10.0
"""The longest that a job may take to end after SIGTERM if nobody reads what it prints."""
_LETTERS = 100
PROGRAM = """
import pathlib, sys, time
kind, pieces, started = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
started.write_text(str(time.time()))
piece = {"lines": "x" * 99 + "\\n", "one line": "x" * 100, "bars": "\\r" + "#" * 99}[kind]
for _ in range(pieces):
    print(piece, end="")
print()
"""
FLOOD = "trap 'exit 75' TERM; echo > {ready}; while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"
LAUNCH = (sys.executable, "-m", "jaxtribute", "launch")


def seconds(command: list[str], kind: str, size: int, folder: Path) -> float:
    """Seconds from the program's first instruction to the end of its output at the reader."""
    started = folder / "started"
    # The launcher sets it for its ranks, so the plain pipe has it too.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    arguments = [*command, str(folder / "program.py"), kind, str(size // _LETTERS), str(started)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        while os.read(process.stdout.fileno(), 1 << 20):
            pass
        end = time.time()
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with {process.returncode}")
    return end - float(started.read_text())


def stalled(folder: Path) -> float:
    """Seconds from SIGTERM to the end of a launcher whose output is a full pipe that nobody reads."""
    ready = folder / "ready"
    command = [*LAUNCH, "sh", "-c", FLOOD.format(ready=ready)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while not ready.exists():
            time.sleep(0.01)
        time.sleep(1.0)  # the pipe is full by then, and the launcher's buffer
        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        code = process.wait(600)
        if code != 75:
            raise RuntimeError(f"the job ended with {code}, not as one that has saved")
        return time.monotonic() - start


def measured(rounds: int, size: int, folder: Path) -> list[dict[str, Any]]:
    """Seconds of both ways for each kind of output, taken in turns."""
    (folder / "program.py").write_text(PROGRAM)
    rows: list[dict[str, Any]] = []
    for kind in ("lines", "one line", "bars"):
        turns = [
            (seconds([sys.executable], kind, size, folder), seconds([*LAUNCH, sys.executable], kind, size, folder))
            for _ in range(rounds)
        ]
        pipe, launched = zip(*turns, strict=True)
        ratio = statistics.median(b / a for a, b in turns)
        rows.append({"kind": kind, "bytes": size, "pipe_s": pipe, "launch_s": launched, "ratio": ratio})
    return rows


def show(rows: list[dict[str, Any]], ends: list[float]) -> None:
    """Prints the figures."""
    table = Table("output", "MB", "plain pipe (s, median)", "launch (s, median)", "ratio", "bar", "met")
    for row in rows:
        medians = [f"{statistics.median(row[name]):.2f}" for name in ("pipe_s", "launch_s")]
        met = "yes" if row["ratio"] <= BAR else "no"
        table.add_row(row["kind"], f"{row['bytes'] / 1e6:g}", *medians, f"{row['ratio']:.2f}", f"<= {BAR:g}", met)
    console = Console(width=100)
    console.print(table)
    met = "met" if max(ends) <= STALLED_S else "not met"
    shown = ", ".join(f"{one:.1f}" for one in ends)
    console.print(f"SIGTERM to a job that nobody reads: ends after {shown} s (bar: {STALLED_S:g} s, {met})")


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launcher_output")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--quick", action="store_true", help="one turn of 1 MB: to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    with tempfile.TemporaryDirectory() as name:
        rows = measured(rounds, 1_000_000 if arguments.quick else SIZE, Path(name))
        ends: list[float] = []
        for _ in range(rounds):
            ends.append(stalled(Path(name)))
            (Path(name) / "ready").unlink()
    show(rows, ends)
    if arguments.json:
        found = {"command": f"python -m benchmarks.launcher_output {' '.join(sys.argv[1:])}", "machine": machine()}
        found |= {"output": rows, "stalled_s": ends}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
