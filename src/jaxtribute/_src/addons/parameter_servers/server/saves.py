"""Folders of `coordinator.save`: one file of each server, and a description that makes the folder complete.

Not Orbax checkpoints: each server writes the part that it alone holds, without another process and without a copy,
together with the pushes that it has applied, which belong to a cluster and not to a model. What is to outlive the
cluster is saved with `jd.Checkpoint`, on Orbax.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxtribute._src.addons.messaging.wire import Header
from jaxtribute.errors import ClusterError
from jaxtribute.extending import Disk

_LOG = logging.getLogger(__name__)
# The save before the last stays as well, in case the last one turns out damaged.
_KEPT = 2
_COMPLETE = "complete.json"
_NAME = re.compile("save-([0-9]{6,})")

Shards = Mapping[int, tuple[int, tuple[int, ...], str]]
"""Of each shard by its key: its server, its shape and the name of its element type."""


@dataclass(frozen=True, slots=True)
class SaveDescription:
    """Contents of the save.

    Attributes:
      servers: how many servers there were.
      number: no update that is in it has a higher number, see `Numbers`.
      shards: what there was: key, server, shape and element type.
      files: the size and the checksum of each server's file, by the server's number.
    """

    servers: int
    number: int
    shards: list[list[Any]]
    files: list[list[int]]

    @classmethod
    def of(cls, number: int, shards: Shards, marks: Mapping[int, tuple[int, int]]) -> SaveDescription:
        """The description of these shards, which servers have written to files of these marks."""
        entries: list[list[Any]] = []
        for key, (server, shape, kind) in shards.items():
            entries.append([key, server, list(shape), kind])
        return cls(len(marks), number, entries, [list(marks[server]) for server in range(len(marks))])

    @property
    def checksum(self) -> int:
        """The checksum of the description itself."""
        return zlib.crc32(json.dumps(asdict(self), sort_keys=True).encode())

    def check(self, path: Path, servers: int, shards: Shards) -> None:
        """Checks that a cluster has what was saved.

        Raises:
          ClusterError: it is another's.
        """
        own = replace(SaveDescription.of(0, shards, {}), servers=servers)
        if self.servers != own.servers:
            raise ClusterError(
                f"{path} was saved by {self.servers} parameter servers, and there are {servers}. "
                "HINT: use as many, or save with jd.Checkpoint, which any number can restore."
            )
        # Keys are counted as variables are made, so that the same program comes to the same keys; another one would
        # load rows of one variable into another.
        if self.shards != own.shards:
            other = [*(s for s in self.shards if s not in own.shards), *(s for s in own.shards if s not in self.shards)]
            key, server, shape, kind = other[0]
            raise ClusterError(
                f"{path} holds other variables or slots than this program's {len(shards)} shards; only one of both "
                f"has shard {key} of {kind}{shape} on server {server}. HINT: make the same variables and optimizers in "
                "the same order as the program that saved them; save again after making more."
            )


def write_state(path: Path, header: Header, arrays: Sequence[Any]) -> None:
    """Writes a state, an uncompressed NumPy archive with the header as JSON inside; `path` never names half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    specs = [[np.asarray(array).dtype.name, np.shape(array)] for array in arrays]
    text = json.dumps({"header": header, "specs": specs})
    # Bytes: NumPy's format does not know element types such as bfloat16.
    flat = {f"a{i}": np.ascontiguousarray(array).reshape(-1).view(np.uint8) for i, array in enumerate(arrays)}
    # With a dot, and this process's number: nobody else writes there, and nobody takes it for a state.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, header=np.array(text), **flat)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_state(path: Path) -> tuple[Header, Iterator[np.ndarray[Any, Any]]]:
    """Reads what `write_state` wrote: each array when it is asked for, so that no two states need be in memory."""
    archive = np.load(path, allow_pickle=False)
    described = json.loads(str(archive["header"]))

    def arrays() -> Iterator[np.ndarray[Any, Any]]:
        with archive:
            for i, (name, shape) in enumerate(described["specs"]):
                yield archive[f"a{i}"].view(np.dtype(name)).reshape(shape)

    return described["header"], arrays()


def file_of(path: Path, server: int) -> Path:
    """The file of one server."""
    return path / f"server-{server}.npz"


def next_folder(directory: Path) -> Path:
    """A folder for the next save: behind all that are there, of whatever run."""
    return directory / f"save-{max(_all(directory), default=0) + 1:06d}"


def complete(path: Path, description: SaveDescription) -> None:
    """Marks a save as complete, and removes others but the last."""
    # Servers have written and synced their files by now; renaming this one is what makes the save count, all or
    # nothing.
    temporary = path / f".{_COMPLETE}"
    with temporary.open("w") as file:
        file.write(json.dumps({**asdict(description), "checksum": description.checksum}))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path / _COMPLETE)
    others = _all(path.parent)
    kept = [number for number in sorted(others) if _present(others[number] / _COMPLETE)][-_KEPT:]
    for number, other in others.items():
        if number not in kept:
            shutil.rmtree(other, ignore_errors=True)


def latest(directory: Path) -> Path | None:
    """The last whole save of a directory; None if nothing was ever saved there.

    Raises:
      ClusterError: there are saves, and all are damaged; or the system cannot read the last one now.
    """
    found, damaged = _all(directory), list[str]()
    for number in sorted(found, reverse=True):
        if not _present(found[number] / _COMPLETE):
            _LOG.warning(
                "%s has no %s and is left out: its writer was killed, or it is damaged", found[number], _COMPLETE
            )
            continue
        try:
            described(found[number])
        except _UnreadableError:
            raise  # it may be whole, so no other one is taken for it
        except ClusterError as error:
            reason = str(error)
            _LOG.warning("%s is left out, and an earlier save is taken: %s", found[number], reason)
            damaged.append(reason)
            continue
        return found[number]
    if damaged:
        listed = "\n".join(damaged)
        raise ClusterError(
            f"none of the {len(damaged)} saves in {directory} is whole:\n{listed}\nHINT: bring one back from a backup, "
            "or move them away to begin anew."
        )
    return None


def described(path: Path | None) -> SaveDescription:
    """Contents of a save; all its files are read and compared with their checksums.

    Raises:
      ClusterError: there is none, or it is damaged: what is not as it was written is listed. Or it cannot be read now.
    """
    try:
        return _described(path)
    except (OSError, MemoryError) as error:
        raise _unreadable(path, error) from error


class _UnreadableError(ClusterError):
    """The system cannot read a save now, which says nothing about its files."""


def _unreadable(path: Path | None, error: BaseException) -> _UnreadableError:
    return _UnreadableError(
        f"{path} cannot be read now: {type(error).__name__}: {error}. That says nothing about what it holds, so no "
        "earlier save is taken for it. HINT: try again once the disk answers; if it never will, move the save away."
    )


def _present(path: Path) -> bool:
    """True if there is something at a path; raises if that cannot be said now."""
    try:
        return Disk.exists(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _described(path: Path | None) -> SaveDescription:
    if path is None or not Disk.exists(path / _COMPLETE):
        raise ClusterError(
            f"there is nothing to restore at {path}. HINT: call coordinator.save() once variables are made."
        )
    try:
        entries = json.loads(Disk.patiently((path / _COMPLETE).read_bytes))
        checksum = entries.pop("checksum")
        description = SaveDescription(**entries)
        sound = description.checksum == checksum
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if Disk.passing(error):
            raise
        description, sound = None, False
    if description is None or not sound:
        raise _damaged(path, [f"{_COMPLETE}: not as it was written"])
    written = {file_of(path, server).name: (mark[0], mark[1]) for server, mark in enumerate(description.files)}
    if problems := Disk.damaged_files(path, written):
        raise _damaged(path, problems)
    return description


def _damaged(path: Path, problems: list[str]) -> ClusterError:
    lines = "".join(f"\n  {problem}" for problem in problems)
    return ClusterError(
        f"{path} is damaged, and nothing was restored:{lines}\nHINT: restore an earlier save; "
        "ClusterCoordinator.latest_save(directory) finds the last one that is whole."
    )


def _all(directory: Path) -> dict[int, Path]:
    """The saves of a directory by their numbers, those that never ended too; other files there are not touched."""
    try:
        listed = Disk.patiently(lambda: list(directory.iterdir()))
    except OSError as error:
        if Disk.passing(error):
            raise _unreadable(directory, error) from error
        return {}
    found: dict[int, Path] = {}
    for path in listed:
        match = _NAME.fullmatch(path.name)
        if match is not None:
            found[int(match[1])] = path
    return found
