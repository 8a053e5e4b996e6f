"""100 MB of output through `jaxtribute launch` beside a plain pipe, and the end of a job that nobody reads.

Ranks print slowly, a line for each call, or fast, in blocks of 100 kB; one rank or four, with log files or without. The
time begins at the ranks' first instruction; the last column has the start of the launcher and of Python in it, too.

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
PROGRAM = """
import os, sys, time
kind, size, started = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with open(started, "a") as file:
    file.write(f"{time.time()}\\n")
way, _, shape = kind.partition(" ")
piece = {"lines": "x" * 99 + "\\n", "line": "x" * 100, "bars": "\\r" + "#" * 99}[shape]
if way == "print":
    for _ in range(size // 100):
        print(piece, end="")
elif way == "tiny":
    for _ in range(size // 100):
        os.write(1, piece.encode())
else:
    block = piece.encode() * 1000
    for _ in range(size // 100_000):
        rest = memoryview(block)
        while rest:
            rest = rest[os.write(1, rest) :]
print()
"""
FLOOD = "trap 'exit 75' TERM; echo > {ready}; while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"
LAUNCH = (sys.executable, "-m", "jaxtribute", "launch")


KINDS = [
    *[(kind, 1, False) for kind in ("print lines", "print line", "print bars", "tiny lines")],
    *[
        (f"block {shape}", ranks, log)
        for ranks in (1, 4)
        for log in (False, True)
        for shape in ("lines", "line", "bars")
    ],
]
"""Output of all ranks together: how it is written and its shape, how many ranks, and whether they have log files."""


def seconds(commands: list[list[str]], started: Path) -> tuple[float, float]:
    """Seconds from the first program's first instruction to the end of all output at the reader; those from the start.

    Args:
      commands: processes that write to one pipe.
      started: where each program writes when it was started.
    """
    started.unlink(missing_ok=True)
    # The launcher sets it for its ranks, so the plain pipe has it too.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    reader, writer = os.pipe()
    start = time.time()
    processes = [subprocess.Popen(command, stdout=writer, env=environment) for command in commands]
    os.close(writer)
    while os.read(reader, 1 << 20):
        pass
    end = time.time()
    os.close(reader)
    for process in processes:
        if process.wait():
            raise RuntimeError(f"{process.args} ended with {process.returncode}")
    return end - min(map(float, started.read_text().split())), end - start


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
    for kind, ranks, log in KINDS:
        program = [sys.executable, str(folder / "program.py"), kind, str(size // ranks), str(folder / "started")]
        logs = ["--log-dir", str(folder / "logs")] if log else []
        launched = [*LAUNCH, "--workers", str(ranks), *logs, *program]
        turns = [
            (*seconds([program] * ranks, folder / "started"), *seconds([launched], folder / "started"))
            for _ in range(rounds)
        ]
        row = dict(
            zip(
                ("pipe_s", "pipe_from_start_s", "launch_s", "launch_from_start_s"),
                zip(*turns, strict=True),
                strict=True,
            )
        )
        ratios = {
            "ratio": statistics.median(turn[2] / turn[0] for turn in turns),
            "ratio_from_start": statistics.median(turn[3] / turn[1] for turn in turns),
        }
        rows.append({"kind": kind, "ranks": ranks, "log": log, "bytes": size, **row, **ratios})
    return rows


def show(rows: list[dict[str, Any]], ends: list[float]) -> None:
    """Prints the figures."""
    table = Table("output", "ranks", "log", "plain pipe (s, median)", "launch (s)", "ratio", "met", "with the start")
    for row in rows:
        medians = [f"{statistics.median(row[name]):.2f}" for name in ("pipe_s", "launch_s")]
        met = "yes" if row["ratio"] <= BAR else "no"
        place = (row["kind"], str(row["ranks"]), "yes" if row["log"] else "no")
        table.add_row(*place, *medians, f"{row['ratio']:.2f}", met, f"{row['ratio_from_start']:.2f}")
    console = Console(width=120)
    console.print(table)
    console.print(f"{rows[0]['bytes'] / 1e6:g} MB each; bar of the ratio: {BAR:g}")
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
