"""The folders of `coordinator.save`: one file of each server, and a description that makes it complete."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxtribute.errors import ClusterError

_KEPT = 2
_PREFIX, _COMPLETE = "save-", "complete.json"

Shards = Mapping[int, tuple[int, tuple[int, ...], str]]
"""Of each shard by its key: its server, its shape and the name of its element type."""


@dataclass(frozen=True, slots=True)
class Description:
    """What was saved.

    Attributes:
      servers: how many servers there were.
      number: no update that is in it has a higher number, see `Numbers`.
      shards: what there was: key, server, shape and element type.
    """

    servers: int
    number: int
    shards: list[list[Any]]

    @classmethod
    def of(cls, servers: int, number: int, shards: Shards) -> Description:
        """The description of these shards."""
        return cls(servers, number, [[key, server, list(shape), kind] for key, (server, shape, kind) in shards.items()])

    def check(self, path: Path, servers: int, shards: Shards) -> None:
        """Checks that a cluster has what was saved.

        Raises:
          ClusterError: it is another's.
        """
        own = Description.of(servers, 0, shards)
        if self.servers != own.servers:
            raise ClusterError(
                f"{path} was saved by {self.servers} parameter servers, and there are {servers}. "
                "HINT: use as many, or save with jd.Checkpoint, which any number can restore."
            )
        if self.shards != own.shards:
            other = [*(s for s in self.shards if s not in own.shards), *(s for s in own.shards if s not in self.shards)]
            key, server, shape, kind = other[0]
            raise ClusterError(
                f"{path} holds other variables or slots than this program's {len(shards)} shards; only one of both "
                f"has shard {key} of {kind}{shape} on server {server}. HINT: make the same variables and optimizers in "
                "the same order as the program that saved them; save again after making more."
            )


def file_of(path: Path, server: int) -> Path:
    """The file of one server."""
    return path / f"server-{server}.npz"


def next_folder(directory: Path) -> Path:
    """A folder for the next save: behind all that are there, of whatever run."""
    numbers = [int(name) for path in _all(directory) if (name := path.name.removeprefix(_PREFIX)).isdecimal()]
    return directory / f"{_PREFIX}{max(numbers, default=0) + 1:06d}"


def complete(path: Path, description: Description) -> None:
    """Marks a save as complete, and removes others but the last."""
    temporary = path / f".{_COMPLETE}"
    with temporary.open("w") as file:
        file.write(json.dumps(asdict(description)))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path / _COMPLETE)
    kept = [other for other in _all(path.parent) if (other / _COMPLETE).exists()][-_KEPT:]
    for old in _all(path.parent):
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)


def latest(directory: Path) -> Path | None:
    """The last complete save of a directory."""
    return next((path for path in reversed(_all(directory)) if (path / _COMPLETE).exists()), None)


def described(path: Path | None) -> Description:
    """What a save holds.

    Raises:
      ClusterError: there is none.
    """
    if path is None or not (path / _COMPLETE).exists():
        raise ClusterError(
            f"there is nothing to restore at {path}. HINT: call coordinator.save() once variables are made."
        )
    return Description(**json.loads((path / _COMPLETE).read_text()))


def _all(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"{_PREFIX}*"))
