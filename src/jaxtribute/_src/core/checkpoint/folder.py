"""A folder of checkpoints: the newest whole one, and those that stay for good."""

from __future__ import annotations

import heapq
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path

from jaxtribute._src.core.checkpoint.background import settle_all
from jaxtribute._src.core.checkpoint.committing import STATE, together
from jaxtribute._src.core.checkpoint.files import (
    FILE,
    check_folder,
    check_name,
    check_path,
    complete,
    not_read,
    number_of,
    present,
    standing,
    stem,
    write_text,
)
from jaxtribute._src.core.checkpoint.restoring import verify
from jaxtribute._src.core.checkpoint.series import Entry, Identity, Series, identity_of
from jaxtribute._src.core.reading import passing, patiently
from jaxtribute._src.json_reading import read_json
from jaxtribute.errors import CheckpointDamagedError, CheckpointError, CheckpointUnreadableError

_LOG = logging.getLogger(__name__)


def latest_checkpoint(directory: str | PathLike[str], checkpoint_name: str | None = None) -> str | None:
    """Finds the whole checkpoint of a folder that was saved last; None if there is none at all.

    Its files are read and compared with their checksums. Of one that is damaged a warning says so, and the one before
    it is looked at, of those that its training has come through. It waits for saves into the folder that this process
    has under way, up to their own deadline. Where workers must agree, call `CheckpointManager.restore_or_initialize`.

    Args:
      directory: the folder.
      checkpoint_name: what the checkpoints' names start with. By default "ckpt", as a manager calls them, or whatever
        they are called if there is none of that name: of several names the one that was written last by the clock.

    Raises:
      CheckpointDamagedError: there are checkpoints, and all that the last one's training has come through are damaged.
      CheckpointUnreadableError: the system cannot read them now.
      CheckpointError: it is no folder; or an earlier version did not note which one was the last.
      ArgumentError: a name or a path that cannot be one.

    Examples:
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     checkpoint = jd.Checkpoint(w=jd.Variable(1.0))
      ...     path = checkpoint.save(f"{folder}/ckpt")
      ...     jd.latest_checkpoint(folder) == path
      True

    Source: `tf.train.latest_checkpoint`.
    """
    folder = check_path(directory, "directory")
    name = "ckpt" if checkpoint_name is None else check_name(checkpoint_name, "checkpoint_name")
    own = latest_of(Series(folder, name), folder, {})
    if own is not None or checkpoint_name is not None:
        return own
    return _first_latest(folder, lambda: latest_of_any_name(folder))


def latest_of_any_name(directory: str | PathLike[str]) -> str | None:
    """Finds the checkpoint that was saved last, as `latest_checkpoint` does, whatever their names start with.

    Args:
      directory: the folder.
    """
    folder = check_path(directory, "checkpoint_dir")
    check_folder(folder)
    settle_all(folder)
    lines = [Series(folder, name).line() for name in names_in(folder)]
    # Within a name the order of the saves is known; between names only the clock tells.
    merged = heapq.merge(*(line for line, _ in lines), key=lambda entry: -entry.written_at)
    others = [path for _, given_up in lines for path in paths_of(given_up)]
    return newest_whole([entry.path for entry in merged], folder, {}, others)


def names_in(folder: Path) -> dict[str, Path]:
    """The names that the checkpoints of a folder start with, each with the path of the highest number; reads none."""
    # The name ends in the number of the save; other folders with a hyphen may lie beside it.
    paths = [(number, path) for path in folder.glob("*-*") if (number := number_of(path)) is not None]
    return {stem(path): path for _, path in sorted(paths) if present(path / FILE) or present(path / STATE)}


def saves_in(directory: str | PathLike[str], checkpoint_name: str = "ckpt") -> list[tuple[Path, Identity | None]]:
    """The checkpoints of a name, in the order of their numbers, each with what tells it from another of its path.

    Args:
      directory: the folder.
      checkpoint_name: what the checkpoints' names start with.
    """
    folder = check_path(directory, "directory")
    return [(path, identity_of(path)) for _, path in sorted(complete(folder, checkpoint_name).items())]


def latest_of(series: Series, directory: Path, known: dict[Path, Identity | None]) -> str | None:
    """The last whole checkpoint of a series, once saves under way are complete; otherwise as `newest_whole`."""

    def latest() -> str | None:
        settle_all(directory)
        line, others = series.line()
        return newest_whole([entry.path for entry in line], directory, known, paths_of(others))

    return _first_latest(directory, latest)


def _first_latest(directory: Path, latest: Callable[[], str | None]) -> str | None:
    """The path that a function finds, on the first of processes that train together."""
    group = together()
    if group is None:
        return latest()
    return group.first(f"the latest checkpoint in {directory}", lambda: latest() or "") or None


def paths_of(entries: Iterable[Entry]) -> list[str]:
    """The paths of some checkpoints."""
    return [str(entry.path) for entry in entries]


def newest_whole(
    paths: Iterable[Path], directory: Path, known: dict[Path, Identity | None], others: Sequence[str] = ()
) -> str | None:
    """The first of some checkpoints whose files are as they were written.

    Args:
      paths: the last first.
      directory: where they are.
      known: those that were known as whole before, with their identities; what is learned is added.
      others: those that may not stand in, of lines that were given up.

    Raises:
      CheckpointDamagedError: there are some, and all are damaged.
      CheckpointUnreadableError: the system cannot read them now.
    """
    skipped: list[str] = []
    for path in paths:
        identity = identity_of(path)
        # Reading all files of a checkpoint takes long, so one that this object has saved or verified is not read again.
        try:
            if identity is None or known.get(path) != identity:
                verify(path)
        except CheckpointDamagedError as error:
            if present(standing(path)):  # otherwise another process has just deleted it
                skipped.append(leave_out(path, error))
            continue
        except CheckpointUnreadableError:
            raise
        except CheckpointError:
            if not present(standing(path)):
                continue  # likewise; one of another version says so when it is restored
        known[path] = identity
        return str(path)
    if skipped:
        raise nothing_whole(directory, skipped, others)
    return None


def leave_out(path: Path, error: CheckpointDamagedError) -> str:
    """Says that a checkpoint is left out; returns the reason, without the HINT, which is what happens next."""
    reason = str(error).partition("HINT:")[0].rstrip()  # a log that kept the error would keep what its traceback knows
    _LOG.warning("%s is left out, and an earlier checkpoint is looked for: %s", path, reason)
    return reason


def nothing_whole(directory: Path, reasons: Sequence[str], others: Sequence[str] = ()) -> CheckpointDamagedError:
    """The error of a folder all of whose checkpoints are damaged, each for its reason.

    Args:
      directory: the folder.
      reasons: what is wrong with each.
      others: checkpoints of lines that were given up.
    """
    listed = "\n".join(reasons)
    if not others:
        return CheckpointDamagedError(
            f"none of the {len(reasons)} checkpoints in {directory} is whole:\n{listed}\nHINT: bring one back from a "
            "backup, or move them away to begin anew."
        )
    return CheckpointDamagedError(
        f"none of the {len(reasons)} checkpoints that the last training in {directory} has come through is whole:\n"
        f"{listed}\nThere are others, of a line that it did not come through: {', '.join(others)}. HINT: if you mean "
        "one of these, restore it by its path, checkpoint.restore(path), and save; or bring one back from a backup."
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

        A file that is damaged says nothing of what may be deleted, so all that is there now stays.

        Raises:
          CheckpointUnreadableError: the file cannot be read now.
        """
        try:
            recorded = patiently(lambda: read_json(self._file))
            return {int(number): float(at) for number, at in recorded}
        except FileNotFoundError:
            return {}
        except (OSError, MemoryError, ValueError, TypeError) as error:
            if passing(error):
                raise not_read(self._file, error) from error
            numbers = complete(self._directory, self._name)
            _LOG.warning(
                "%s cannot be read: %s. All checkpoints that are there stay: %s. HINT: delete what is not needed.",
                self._file,
                f"{type(error).__name__}: {error}",  # a log that kept the error would keep all its traceback knows
                sorted(numbers),
            )
            return dict.fromkeys(numbers, time.time())

    def write(self, entries: dict[int, float]) -> None:
        """Writes a new file in its place, so that there is never half of one."""
        fresh = self._file.with_suffix(".new")
        write_text(fresh, json.dumps(list(entries.items())) + "\n")
        fresh.replace(self._file)
