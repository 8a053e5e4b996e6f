"""Folders of runs as workers and launchers write them, made up to the second."""

import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from jaxtribute._src.addons.live.files import JOB, now_file, worker_file, write_now
from jaxtribute._src.addons.live.windows import Window, length_after

on_a_quiet_machine = pytest.mark.skipif(
    "JAXTRIBUTE_QUIET_MACHINE" not in os.environ,
    reason="for a machine that does nothing else: set JAXTRIBUTE_QUIET_MACHINE=1",
)
"""Marks tests that measure seconds, of which other tests beside them would take some."""
START = 1_700_000_000.0
Parts = Callable[[int, float], Mapping[str, float]]
"""Shares of the parts of a worker's time, from its rank and the seconds since the start."""


def computing(rank: int, second: float) -> Mapping[str, float]:
    """A worker that does nothing but compute."""
    return {"step": 1.0}


def no_figures(second: float) -> dict[str, Any]:
    """Figures of a process that has nothing to do with parameter servers."""
    return {}


class Writer:
    """Writes the files of one worker.

    Args:
      directory: of the run.
      rank: of the worker.
      step_s: seconds of a step.
      examples: in a step.
      role: of the process.

    Attributes:
      figures: makes the figures of the process's tasks, of the seconds since the start.
    """

    def __init__(
        self, directory: Path, rank: int, step_s: float = 0.05, examples: int = 256, role: str = "worker"
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.rank, self.step_s, self.examples = directory, rank, step_s, examples
        self.role = role
        self.figures: Callable[[float], dict[str, Any]] = no_figures
        self.lines: list[str] = []
        self.steps = 0
        self.count = 0

    def add(self, kind: str, moment: float, **facts: Any) -> None:
        """Adds a record."""
        self.lines.append(json.dumps({"k": kind, "t": moment, **facts}))

    def start(self, moment: float, **facts: Any) -> None:
        """Adds a start of the worker."""
        about = {"pid": 4000 + self.rank, "host": f"node-{self.rank // 8:02}", "program": "train.py"}
        self.add("start", moment, rank=self.rank, **(about | facts))
        self.add("devices", moment, devices=[f"cuda:{self.rank % 8}"])
        self.steps = self.count = 0

    def window(self, moment: float, length: int, parts: Mapping[str, float]) -> dict[str, Any]:
        """The record of a window whose parts have such shares."""
        made = Window(moment, length, {name: share * length for name, share in parts.items()})
        made.steps = round(parts.get("step", 0.0) * length / self.step_s)
        made.examples = made.steps * self.examples
        self.steps += made.steps
        made.last = self.steps
        # The times of steps differ a little, as they do.
        for offset in range(12):
            made.add_steps(self.step_s * (0.9 + 0.02 * offset), made.steps // 12)
        if self.rank == 0 and self.role == "worker":
            made.metrics = {"loss": 2.0 / (1 + self.steps / 500) + 0.02 * (self.steps % 7), "step": self.steps}
        memory = {"rss": 3 << 30, "mem": [[(40 << 30) + self.rank * (1 << 28), 80 << 30]], "pos": self.steps}
        tasks = self.figures(moment + sum(made.buckets.values()) - START)
        return made.record() | memory | ({"tasks": tasks} if tasks else {})

    def train(self, moment: float, seconds: float, parts: Parts = computing) -> float:
        """Adds windows for so long, of the lengths that a worker would give them, and returns the end."""
        end = moment + seconds
        while True:
            length = length_after(self.count)
            begin = moment // length * length
            if begin + length > end:
                return moment
            self.lines.append(json.dumps(self.window(begin, length, parts(self.rank, moment - START))))
            self.count += 1
            moment = begin + length

    def now(self, moment: float, event: str, since: float, **facts: Any) -> None:
        """Writes what the worker does now."""
        told = {"t": moment, "event": event, "bucket": event, "since": since, "where": "train.py:42", "for": ""}
        told |= {"steps": self.steps, "window": self.window(moment // 1, 1, {})} | facts
        write_now(now_file(self.directory, self.rank, self.role), told)

    def close(self) -> None:
        """Writes the file."""
        worker_file(self.directory, self.rank, self.role).write_text("".join(line + "\n" for line in self.lines))


def write_job(directory: Path, *records: Mapping[str, Any]) -> None:
    """Writes the launcher's file."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / JOB).write_text("".join(json.dumps(dict(record)) + "\n" for record in records))


def launched(moment: float = START, workers: int = 2, command: str = "python train.py") -> list[dict[str, Any]]:
    """Records of a launcher that has started a job."""
    return [
        {"k": "job", "t": moment, "command": command},
        {"k": "attempt start", "t": moment, "restart": 0, "workers": workers, "nodes": 1},
    ]


def running(directory: Path, workers: int, seconds: int, parts: Parts = computing, **names: Any) -> float:
    """Writes a run that goes on, and returns the moment that is now."""
    end = START + seconds
    for rank in range(workers):
        worker = Writer(directory, rank)
        worker.start(START, **names)
        worker.train(START, seconds, parts)
        worker.now(end, "step", end - 0.04)
        worker.close()
    write_job(directory, *launched(workers=workers))
    return end


def with_servers(directory: Path, servers: int = 2, workers: int = 4, seconds: int = 120) -> float:
    """Writes a run with parameter servers that goes on, of which server 1 was restarted; returns the moment of now."""
    end = START + seconds

    def process(rank: int, role: str, figures: Callable[[float], dict[str, Any]], parts: Parts) -> Writer:
        worker = Writer(directory, rank, role=role)
        worker.start(START + 1)
        worker.figures = figures
        worker.train(START + 1, seconds - 1, parts)
        return worker

    def queue(second: float) -> dict[str, Any]:
        waiting = max(0, 900 - 7 * int(second))
        return {"coordinator": {"waiting": waiting, "running": 8, "done": 40 * int(second), "failed": 1, "absent": [3]}}

    def holds(rank: int, second: float) -> dict[str, Any]:
        figures = {
            "bytes": (3 - rank) << 30,
            "shards": 12,
            "requests": 300 * second,
            "waiting": rank,
            "busy": 0.4 * second,
        }
        return {f"ps {rank}": figures}

    def stale(rank: int, second: float) -> dict[str, Any]:
        pulls = 10 * second
        figures = {"pulls": pulls, "behind": 3 * pulls, "behind_now": 2 + rank, "most_behind": 9, "pushes": pulls}
        return {f"worker {rank}": figures | {"sent": 1e6 * second, "received": 4e6 * second}}

    def asynchronous(rank: int, second: float) -> Mapping[str, float]:
        return {"step": 0.7, "collective": 0.25, "other": 0.05}

    def idle(rank: int, second: float) -> Mapping[str, float]:
        return {"other": 1.0}

    one = process(0, "worker", queue, idle)
    one.now(end, "python", end)
    one.close()
    for rank in range(servers):
        one = process(rank, "ps", functools.partial(holds, rank), idle)
        if rank == 1:
            one.start(end)
        one.now(end, "python", end)
        one.close()
    for rank in range(workers):
        one = process(rank, "ps-worker", functools.partial(stale, rank), asynchronous)
        one.now(
            end, "wait" if rank == 2 else "closure", end - 0.3, **{"for": "for the servers" if rank == 2 else "step"}
        )
        one.close()
    return end


def eventful(directory: Path, workers: int = 64, seconds: int = 1800) -> float:
    """Writes a run of many workers with all that can happen, and returns the moment that is now."""
    slow, killed_at, again_at, end = 17, START + 900, START + 930, START + seconds

    def before(rank: int, second: float) -> Mapping[str, float]:
        if second < 20:
            return {"other": 0.7, "compile": 0.3}
        if second % 300 < 4:
            return {"save": 0.9, "step": 0.1}
        return {"step": 0.93, "input": 0.05, "other": 0.02}

    def after(rank: int, second: float) -> Mapping[str, float]:
        if second < 945:
            return {"recovery": 1.0}
        if rank == slow and second > 1200:
            return {"step": 0.6, "input": 0.38, "other": 0.02}
        return before(rank, second)

    for rank in range(workers):
        worker = Writer(directory, rank)
        worker.start(START + 1)
        worker.train(START + 1, 899, before)
        worker.start(again_at)
        worker.train(again_at, end - again_at, after)
        if rank == slow:
            worker.now(end, "input", end - 3.2)
        else:
            worker.now(end, "step", end - 3.1)
        if rank == 0:
            for number in range(1, seconds // 300):
                path = f"gs://bucket/run/ckpt-{number}"
                worker.add("write start", START + 300 * number - 60, path=path)
                worker.add("write end", START + 300 * number - 39.0, path=path)
        worker.close()
    trace = (
        "Traceback (most recent call last):\n  File 'train.py', line 42, in step\nRuntimeError: NCCL watchdog timeout"
    )
    failed = {"kind": "failed", "code": 1, "rank": 9, "words": "was killed by SIGKILL", "traceback": trace, "killed": 1}
    write_job(
        directory,
        *launched(workers=workers, command="python train.py --config large --batch 4096"),
        {"k": "attempt end", "t": killed_at, **failed},
        {"k": "attempt start", "t": again_at - 1, "restart": 1, "workers": workers, "nodes": 8},
    )
    return end
