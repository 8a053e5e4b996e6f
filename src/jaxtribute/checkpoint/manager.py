"""`CheckpointManager`: a folder of checkpoints, of which the newest are kept."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from jaxtribute import settings
from jaxtribute.checkpoint import committing
from jaxtribute.checkpoint.checkpoint import Checkpoint
from jaxtribute.checkpoint.description import Description
from jaxtribute.checkpoint.files import (
    FILE,
    UNFINISHED,
    check_name,
    check_path,
    complete,
    left_over,
    numbered,
    standing,
)
from jaxtribute.checkpoint.preserved import Preserved
from jaxtribute.checkpoint.restoring import verify
from jaxtribute.errors import ArgumentError, ArgumentTypeError, CheckpointDamagedError, CheckpointError

_LOG = logging.getLogger(__name__)
_HOUR_S = 3600.0


def latest_checkpoint(directory: Any, checkpoint_name: str = "ckpt") -> str | None:
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
    return _newest_whole([found[number] for number in sorted(found, reverse=True)], folder, {})


class CheckpointManager:
    """Saves checkpoints under numbered names into a folder, and deletes old ones.

    Args:
      checkpoint: what is saved.
      directory: the folder, on a file system that all workers see; it is made where it does not exist.
      max_to_keep: how many of the newest checkpoints stay; None keeps all.
      keep_checkpoint_every_n_hours: in addition, one for each such span of time since this object was made.
      checkpoint_name: what names start with: `{checkpoint_name}-{number}`.
      step_counter: a variable, a number or a function without arguments that says at which step the training is;
        needed for `checkpoint_interval`.
      checkpoint_interval: steps that must have passed since the last checkpoint for `save` to save.
      init_fn: called by `restore_or_initialize` where there is no checkpoint.
      block: whether `save` returns only once the checkpoint is complete.
      timeout_s: how long workers wait for each other; by default as long as for a step, at most ten minutes.

    In a cluster all workers make the same calls.

    Raises:
      ArgumentError: a count or span that is not positive, an interval without a step counter, or a name or path that
        cannot be one.
      ArgumentTypeError: a name or path of another type.

    Source: `tf.train.CheckpointManager`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: Any,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        *,
        block: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        limits = {
            "max_to_keep": max_to_keep,
            "keep_checkpoint_every_n_hours": keep_checkpoint_every_n_hours,
            "checkpoint_interval": checkpoint_interval,
        }
        for name, value in limits.items():
            settings.amount(name, value, above=True, optional=True)
        settings.whole("max_to_keep", max_to_keep, 1, optional=True)
        settings.whole("checkpoint_interval", checkpoint_interval, 1, optional=True)
        settings.amount("timeout_s", timeout_s, above=True, optional=True)
        settings.flag("block", block)
        settings.function("init_fn", init_fn, optional=True)
        settings.text("checkpoint_name", checkpoint_name)
        if checkpoint_interval is not None and step_counter is None:
            raise ArgumentError(
                f"checkpoint_interval={checkpoint_interval} counts steps, and step_counter is None. "
                "HINT: pass the variable that counts your steps."
            )
        self._checkpoint = checkpoint
        self._directory = check_path(directory, "directory")
        self._max_to_keep = max_to_keep
        self._every_s = None if keep_checkpoint_every_n_hours is None else keep_checkpoint_every_n_hours * _HOUR_S
        self._name = check_name(checkpoint_name, "checkpoint_name")
        self._step_counter, self._interval = step_counter, checkpoint_interval
        self._init_fn, self._block, self._timeout_s = init_fn, block, timeout_s
        self._last_step: int | None = None
        self._preserved = Preserved(self._directory, self._name)
        self._preserved_at = max(self._preserved.entries().values(), default=time.time())
        self._known: dict[Path, Any] = {}
        self._damaged: set[Path] = set()

    @property
    def checkpoint(self) -> Checkpoint:
        """What is saved."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """The folder."""
        return str(self._directory)

    @property
    def checkpoint_interval(self) -> int | None:
        """Steps between checkpoints."""
        return self._interval

    @property
    def checkpoints(self) -> list[str]:
        """The complete checkpoints in the folder, the oldest first."""
        found = complete(self._directory, self._name)
        return [str(found[number]) for number in sorted(found)]

    @property
    def latest_checkpoint(self) -> str | None:
        """The newest whole checkpoint, or None.

        Its files are read once and compared with their checksums, unless this object has saved or restored it.

        Raises:
          CheckpointDamagedError: there are checkpoints, and all are damaged.
        """
        return _newest_whole(self._newest_first(), self._directory, self._known)

    def save(self, checkpoint_number: Any = None, check_interval: bool = True) -> str | None:
        """Saves a checkpoint, in the background unless `block` was given.

        Args:
          checkpoint_number: its number, an int, a variable or an array of one; by default `save_counter`, counted up.
          check_interval: whether to leave it out where `checkpoint_interval` steps have not passed.

        Returns:
          The path where it will be, or None if it was left out.

        Raises:
          CheckpointError: the save before this one failed, or with `block` this one.
          DeadlineError: likewise, because a worker did not come.

        Source: `tf.train.CheckpointManager.save`.
        """
        step = self._step()
        if check_interval and self._too_soon(step):
            return None
        self._checkpoint.wait()
        number = self._checkpoint.count() if checkpoint_number is None else _number(checkpoint_number)
        target = self._directory / f"{self._name}-{number}"
        path = self._checkpoint.write(
            target, block=self._block, timeout_s=self._timeout_s, committed=lambda: self._prune(target)
        )
        self._last_step = step
        return path

    def restore_or_initialize(self) -> str | None:
        """Restores the newest whole checkpoint, or calls `init_fn` where there is none at all.

        Of one that is damaged a warning says so, and the one before it is taken.

        Returns:
          The path of the checkpoint, or None.

        Raises:
          CheckpointMismatchError: the checkpoint does not fit.
          CheckpointDamagedError: there are checkpoints, and all are damaged.
          CheckpointError: the checkpoint cannot be read.

        Source: `tf.train.CheckpointManager.restore_or_initialize`.
        """
        self._checkpoint.wait()
        skipped: list[str] = []
        for path in self._agreed(self._newest_first()):
            try:
                self._checkpoint.restore(path)
            except CheckpointDamagedError as error:
                self._damaged.add(path)
                skipped.append(_skip(path, error))
                continue
            self._known[path] = _identity(path)
            self._last_step = self._step()
            return str(path)
        if skipped:
            raise _nothing_whole(self._directory, skipped)
        if self._init_fn is not None:
            self._init_fn()
        return None

    def wait(self) -> None:
        """Waits until the save that is under way is complete; raises what went wrong with it."""
        self._checkpoint.wait()

    sync = wait

    def close(self) -> None:
        """The same, at the end of the training."""
        self._checkpoint.wait()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self) -> int | None:
        counter = self._step_counter
        if counter is None:
            return None
        return int(cast("Any", counter() if callable(counter) else counter))

    def _too_soon(self, step: int | None) -> bool:
        if self._interval is None or step is None or self._last_step is None:
            return False
        return step - self._last_step < self._interval

    def _newest_first(self) -> list[Path]:
        found = numbered(self._directory, self._name)
        return [found[number] for number in sorted(found, reverse=True)]

    def _agreed(self, paths: list[Path]) -> list[Path]:
        """What the first worker sees, which others may not see yet on a file system over the network."""
        cluster = committing.cluster()
        if cluster is None:
            return paths
        key = f"jaxtribute/latest/{cluster.number('latest')}"
        if cluster.rank == 0:
            cluster.set(key, json.dumps([str(path) for path in paths]))
        told = json.loads(cluster.get(key, committing.patience(cluster, self._timeout_s), of=0))
        return [Path(path) for path in told]

    def _prune(self, saved: Path) -> None:
        """Deletes what is too old or was never completed; the first worker does it, after each save."""
        self._damaged.discard(saved)
        self._known[saved] = _identity(saved)
        found = complete(self._directory, self._name)
        others = [number for number in sorted(found) if found[number] not in (*self._damaged, saved)]
        kept = self._preserved.entries()
        for number in others[: 1 - self._max_to_keep or None] if self._max_to_keep is not None else []:
            if number in kept or self._begins_span(found[number]):
                kept.setdefault(number, self._preserved_at)
                continue
            # A name that no complete checkpoint has, in case that this is where the program ends.
            gone = Path(f"{found[number]}{UNFINISHED}")
            shutil.rmtree(gone, ignore_errors=True)
            standing(found[number]).rename(gone)
        if kept != self._preserved.entries():
            self._preserved.write(kept)
        for left in left_over(self._directory, self._name):
            shutil.rmtree(left, ignore_errors=True)

    def _begins_span(self, path: Path) -> bool:
        """True if a checkpoint is the first one of a span of time, and stays."""
        if self._every_s is None:
            return False
        try:
            written_at = Description.read(standing(path)).written_at
        except CheckpointError:  # damaged: nobody can use it
            return False
        if written_at - self._preserved_at < self._every_s:
            return False
        self._preserved_at = written_at
        return True


def _newest_whole(paths: Iterable[Path], directory: Path, known: dict[Path, Any]) -> str | None:
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
        identity = _identity(path)
        try:
            if identity is None or known.get(path) != identity:
                verify(path)
        except CheckpointDamagedError as error:
            if standing(path).exists():  # otherwise another process has just deleted it
                skipped.append(_skip(path, error))
            continue
        except CheckpointError:
            if not standing(path).exists():
                continue  # likewise; one of another version says so when it is restored
        known[path] = identity
        return str(path)
    if skipped:
        raise _nothing_whole(directory, skipped)
    return None


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells a checkpoint from a later one of the same name."""
    try:
        stat = (standing(path) / FILE).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _skip(path: Path, error: CheckpointDamagedError) -> str:
    """Says that a checkpoint is left out; returns the reason."""
    _LOG.warning("%s is left out, and an earlier checkpoint is taken: %s", path, error)
    return str(error)


def _nothing_whole(directory: Path, reasons: Sequence[str]) -> CheckpointDamagedError:
    listed = "\n".join(reasons)
    return CheckpointDamagedError(
        f"none of the {len(reasons)} checkpoints in {directory} is whole:\n{listed}\nHINT: bring one back from a "
        "backup, or move them away to begin anew."
    )


def _number(value: Any) -> int:
    """A checkpoint's number.

    Raises:
      ArgumentError: negative, or not whole.
      ArgumentTypeError: no number.
    """
    try:
        number, exact = int(value), float(value)
        if isinstance(value, str):
            raise TypeError
    except (TypeError, ValueError, OverflowError):
        raise ArgumentTypeError(
            f"checkpoint_number={value!r} is a {type(value).__name__}. HINT: pass a whole number, or a variable of one."
        ) from None
    if number < 0 or float(number) != exact:
        raise ArgumentError(f"checkpoint_number={value!r} is not a whole number from 0 on. HINT: pass your step.")
    return number
