"""A folder of checkpoints: the newest whole one, and those that stay for good."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path

from jaxtribute._src.checkpoint.files import FILE, check_name, check_path, complete, numbered, standing, write_text
from jaxtribute._src.checkpoint.restoring import verify
from jaxtribute.errors import CheckpointDamagedError, CheckpointError

_LOG = logging.getLogger(__name__)

Identity = tuple[int, int]
"""Tells a checkpoint from a later one of the same name."""


def latest_checkpoint(directory: str | PathLike[str], checkpoint_name: str = "ckpt") -> str | None:
    """Finds the whole checkpoint of the highest number in a folder; None where there is none at all.

    Its files are read and compared with their checksums. Of one that is damaged a warning says so, and the one before
    it is looked at. Where workers must agree, call `CheckpointManager.restore_or_initialize` instead.

    Args:
      directory: the folder.
      checkpoint_name: what the checkpoints' names start with.

    Raises:
      CheckpointDamagedError: there are checkpoints, and all are damaged.
      ArgumentError: a name or a path that cannot be one.

    Source: `tf.train.latest_checkpoint`.
    """
    folder = check_path(directory, "directory")
    found = numbered(folder, check_name(checkpoint_name, "checkpoint_name"))
    return newest_whole([found[number] for number in sorted(found, reverse=True)], folder, {})


def newest_whole(paths: Iterable[Path], directory: Path, known: dict[Path, Identity | None]) -> str | None:
    """The first of some checkpoints whose files are as they were written.

    Args:
      paths: the newest first.
      directory: where they are.
      known: those that were found whole before, with their identities; one that is found now is added.

    Raises:
      CheckpointDamagedError: there are some, and all are damaged.
    """
    skipped: list[str] = []
    for path in paths:
        identity = identity_of(path)
        # Reading all files of a checkpoint takes long, so one that this object has saved or verified is not read again.
        try:
            if identity is None or known.get(path) != identity:
                verify(path)
        except CheckpointDamagedError as error:
            if standing(path).exists():  # otherwise another process has just deleted it
                skipped.append(leave_out(path, error))
            continue
        except CheckpointError:
            if not standing(path).exists():
                continue  # likewise; one of another version says so when it is restored
        known[path] = identity
        return str(path)
    if skipped:
        raise nothing_whole(directory, skipped)
    return None


def identity_of(path: Path) -> Identity | None:
    """The identity of a checkpoint, from the file of it that was written last; None where there is none."""
    try:
        stat = (standing(path) / FILE).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def leave_out(path: Path, error: CheckpointDamagedError) -> str:
    """Says that a checkpoint is left out; returns the reason."""
    reason = str(error)  # a log that kept the error would keep all that its traceback knows
    _LOG.warning("%s is left out, and an earlier checkpoint is taken: %s", path, reason)
    return reason


def nothing_whole(directory: Path, reasons: Sequence[str]) -> CheckpointDamagedError:
    """The error of a folder all of whose checkpoints are damaged, each for its reason."""
    listed = "\n".join(reasons)
    return CheckpointDamagedError(
        f"none of the {len(reasons)} checkpoints in {directory} is whole:\n{listed}\nHINT: bring one back from a "
        "backup, or move them away to begin anew."
    )


class KeptCheckpoints:
    """Records the checkpoints of one name that stay, and their times of writing.

    Args:
      directory: the folder.
      name: what the checkpoints' names start with.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._file = directory / f".{name}.kept.json"

    def entries(self) -> dict[int, float]:
        """The numbers of those that stay, with their times in seconds since 1970.

        A file that cannot be read says nothing of what may be deleted, so all that is there now stays.
        """
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return {int(number): float(at) for number, at in found}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            numbers = complete(self._directory, self._name)
            _LOG.warning(
                "%s cannot be read: %s. All checkpoints that are there stay: %s. HINT: delete what is not needed.",
                self._file,
                f"{type(error).__name__}: {error}",  # a log that kept the error would keep all its traceback knows
                sorted(numbers),
            )
            return dict.fromkeys(numbers, time.time())

    def write(self, entries: dict[int, float]) -> None:
        """Writes the file anew, so that there is never half of it."""
        fresh = self._file.with_suffix(".new")
        write_text(fresh, json.dumps(list(entries.items())) + "\n")
        fresh.replace(self._file)
