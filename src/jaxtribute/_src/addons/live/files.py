"""The folder of a run: lines of JSON that are only ever appended, and a small file for what each worker does now.

| file | written by | holds |
|---|---|---|
| `job.jsonl` | the launcher of machine 0 | starts, outcomes with tracebacks, the end |
| `worker-00003.jsonl` | worker 3 | who it is, windows of time, saves, failures |
| `worker-00003.now.json` | worker 3, written over some times a second | what it does, and the window that is not over |
| `ps-00001.jsonl`, `mirror-00001.jsonl` | parameter server 1, or its mirror | the same, with what it holds and does |
| `ps-worker-00001.jsonl` | worker 1 of a cluster with parameter servers | the same; their coordinator is worker 0 |
| `plan.json` | `jaxtribute plan --json`, if the user puts it there | the predicted time of a step |
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from jaxtribute._src.regular_files import open_regular, read_regular

if TYPE_CHECKING:
    from jaxtribute.typing import Json

JOB = "job.jsonl"
PLAN = "plan.json"
BUCKETS = ("step", "input", "collective", "save", "compile", "recovery", "lost", "other")
"""Parts of the time of a run, which add up to all of it."""
LABELS = {
    "step": "training steps",
    "input": "input",
    "collective": "waiting for workers",
    "save": "checkpoints",
    "compile": "compilation",
    "recovery": "recovery",
    "lost": "lost work",
    "other": "Python, start-up",
}
"""Parts of the time in words."""
ROLES = {"worker": "ps-worker", "ps": "ps", "mirror": "mirror"}
"""Roles of files, by the tasks of a cluster with parameter servers."""
_LONGEST = 1 << 20
_PIECE, _AT_ONCE = 1 << 22, 1 << 28
"""Bytes that are read together, and in one look at a run."""


def worker_file(directory: Path, rank: int, role: str = "worker") -> Path:
    """The file of a worker's records, or of another process with such a role."""
    return directory / f"{role}-{rank:05}.jsonl"


def now_file(directory: Path, rank: int, role: str = "worker") -> Path:
    """The file of what a worker does now, or another process with such a role."""
    return directory / f"{role}-{rank:05}.now.json"


class Lines:
    """A file that lines of JSON are appended to, each in one system call, so that a kill cuts the last line at most.

    Args:
      path: the file, made if need be, with its folder.

    Raises:
      OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
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

    Attributes:
      problem: why the file cannot be read; empty if it can, or is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self._place = 0
        self._rest = b""

    def new(self) -> Generator[dict[str, Json]]:
        """Records that were appended since the last call."""
        try:
            with os.fdopen(open_regular(self.path, os.O_RDONLY), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                yield from self._records(file, size)
            left = size - self._place
            self.problem = f"of {self.path.name} {left:,} bytes are still to be read" if left else ""
        except FileNotFoundError:
            return
        except OSError as error:
            self.problem = f"{self.path.name} cannot be read: {error.strerror or error}"

    def _records(self, file: BinaryIO, size: int) -> Generator[dict[str, Json]]:
        # Somebody has emptied the file: what stands there now is all new.
        if size < self._place:
            self._place, self._rest = 0, b""
        file.seek(self._place)
        # A piece at a time, of what is there now: it may be larger than the memory, or grow as fast as it is read.
        end = min(size, self._place + _AT_ONCE)
        while self._place < end:
            data = file.read(min(_PIECE, end - self._place))
            if not data:
                return
            self._place += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            # What never ends is no record, and must not fill the memory.
            if len(self._rest) >= _LONGEST:
                self._rest = b""
            yield from filter(None, map(parsed, lines))


def parsed(line: bytes) -> dict[str, Json] | None:
    """The object of JSON in a line; None if there is none, as in a line that a kill has cut."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_json(path: Path) -> dict[str, Json] | None:
    """Content of a small file of JSON; None if it is not there or is no object.

    Raises:
      OSError: it is there, and cannot be read.
    """
    try:
        return parsed(read_regular(path, _LONGEST))
    except FileNotFoundError:
        return None


def read_now(path: Path) -> dict[str, Json] | None:
    """The record that `write_now` has put into a file; None if there is none, or only a part of it.

    Raises:
      OSError: the file is there, and cannot be read.
    """
    try:
        line = read_regular(path, _LONGEST).partition(b"\n")[0]
    except FileNotFoundError:
        return None
    text, _, check = line.rpartition(b" ")
    return parsed(text) if check == _checked(text) else None


def write_now(path: Path, record: Mapping[str, Json]) -> None:
    """Puts a record, with its checksum, in the place of the one before."""
    # Some times a second in each worker: making another file and renaming that takes twenty times as long. Who reads in
    # the middle of a write, or after a kill there, sees a checksum that is not the text's. Behind the line the rest of
    # a longer one may stand. It is closed, as network file systems then show it to others.
    text = json.dumps(record, separators=(",", ":")).encode()
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(descriptor, b"%b %b\n" % (text, _checked(text)))
    finally:
        os.close(descriptor)


def _checked(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)
