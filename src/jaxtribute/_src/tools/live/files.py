"""The folder of a run: lines of JSON that are only ever appended, and a small file for what each worker does now.

| file | written by | holds |
|---|---|---|
| `job.jsonl` | the launcher of machine 0 | starts, outcomes with tracebacks, the end |
| `worker-00003.jsonl` | worker 3 | who it is, windows of time, saves, failures |
| `worker-00003.now.json` | worker 3, once a second, replaced whole | what it does, and the window that is not over |
| `plan.json` | `jaxtribute plan --json`, if the user puts it there | the predicted time of a step |
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from jaxtribute._src.types import Json

JOB = "job.jsonl"
PLAN = "plan.json"
BUCKETS = ("step", "input", "collective", "save", "compile", "recovery", "lost", "other")
"""Parts of the time of a run, which add up to all of it."""
LABELS = {
    "step": "useful steps",
    "input": "input",
    "collective": "waiting for workers",
    "save": "saves",
    "compile": "compiling",
    "recovery": "recovery",
    "lost": "lost work",
    "other": "Python, start-up",
}
"""Parts of the time in words."""
_LONGEST = 1 << 20


def worker_file(directory: Path, rank: int) -> Path:
    """The file of a worker's records."""
    return directory / f"worker-{rank:05}.jsonl"


def now_file(directory: Path, rank: int) -> Path:
    """The file of what a worker does now."""
    return directory / f"worker-{rank:05}.now.json"


class Lines:
    """A file that lines of JSON are appended to, each in one system call, so that a kill cuts the last line at most.

    Args:
      path: the file, made if need be, with its folder.

    Raises:
      OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # the end of a line that a kill has cut

    def write(self, record: Mapping[str, Json]) -> None:
        """Appends a record."""
        os.write(self._descriptor, json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Closes the file; further calls do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Tail:
    """Reads the records of a file that grows, from where it stopped before. What is no record is left out.

    Args:
      path: the file, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = 0
        self._rest = b""

    def new(self) -> list[dict[str, Json]]:
        """Records that were appended since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._place)
                data = file.read()
        except OSError:
            return []
        self._place += len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) < _LONGEST else b""
        records: list[dict[str, Json]] = []
        for line in lines:
            record = parsed(line)
            if record is not None:
                records.append(record)
        return records


def parsed(line: bytes) -> dict[str, Json] | None:
    """The object of JSON in a line; None where there is none, as in a line that a kill has cut."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_now(path: Path) -> dict[str, Json] | None:
    """Content of a small file of JSON; None if it is not there or is no object."""
    try:
        return parsed(path.read_bytes())
    except OSError:
        return None


def write_now(path: Path, record: Mapping[str, Json]) -> None:
    """Replaces a small file of JSON as a whole."""
    # Once a second in each worker: a third of the work of `Path.write_bytes` and `Path.replace`.
    old, new = str(path), f"{path}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, json.dumps(record, separators=(",", ":")).encode())
    finally:
        os.close(descriptor)
    os.replace(new, old)  # noqa: PTH105
