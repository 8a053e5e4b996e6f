"""`CheckpointManager`: a folder of checkpoints, of which the newest are kept."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, SupportsInt

from jaxtribute._src import settings
from jaxtribute._src.checkpoint import committing
from jaxtribute._src.checkpoint.checkpoint import Checkpoint
from jaxtribute._src.checkpoint.description import Description
from jaxtribute._src.checkpoint.files import UNFINISHED, check_name, check_path, complete, left_over, numbered, standing
from jaxtribute._src.checkpoint.folder import (
    Identity,
    KeptCheckpoints,
    identity_of,
    leave_out,
    newest_whole,
    nothing_whole,
)
from jaxtribute._src.checkpoint.owner import Owner
from jaxtribute._src.types import Foreign
from jaxtribute.errors import ArgumentError, ArgumentTypeError, CheckpointDamagedError, CheckpointError

_LOG = logging.getLogger(__name__)
_HOUR_S = 3600.0


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

    In a cluster all workers make the same calls. From the first save or restore until `close` or the end of the program
    no other job can save under this name in this folder.

    Raises:
      ArgumentError: a count or span that is not positive, an interval without a step counter, or a name or path that
        cannot be one.
      ArgumentTypeError: a name or path of another type.

    Source: `tf.train.CheckpointManager`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | PathLike[str],
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: SupportsInt | Callable[[], SupportsInt] | None = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        *,
        block: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        settings.amount("keep_checkpoint_every_n_hours", keep_checkpoint_every_n_hours, above=True, optional=True)
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
        self._kept = KeptCheckpoints(self._directory, self._name)
        # Spans of time go on from where an earlier start of the program was.
        self._preserved_at = max(self._kept.entries().values(), default=time.time())
        self._owner = Owner(self._directory, self._name)
        self._known: dict[Path, Identity | None] = {}
        self._damaged: set[Path] = set()

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint object that is saved."""
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
        return newest_whole(self._newest_first(), self._directory, self._known)

    def save(self, checkpoint_number: SupportsInt | None = None, check_interval: bool = True) -> str | None:
        """Saves a checkpoint, in the background unless `block` was given.

        Args:
          checkpoint_number: its number, an int, a variable or an array of one; by default `save_counter`, counted up.
          check_interval: whether to leave it out where `checkpoint_interval` steps have not passed.

        Returns:
          The path where it will be, or None if it was left out.

        Raises:
          CheckpointError: the save before this one failed, or with `block` this one; also where another job saves here.
          DeadlineError: likewise, because a worker did not come.

        Source: `tf.train.CheckpointManager.save`.
        """
        step = self._step()
        if check_interval and self._too_soon(step):
            return None
        self._checkpoint.wait()
        # Counted only now: where the save before has failed, no number is used up.
        number = self._checkpoint.count() if checkpoint_number is None else _number(checkpoint_number)
        target = self._directory / f"{self._name}-{number}"
        path = self._checkpoint.write(
            target,
            block=self._block,
            timeout_s=self._timeout_s,
            committed=lambda: self._prune(target),
            owner=self._owner,
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
          CheckpointError: the checkpoint cannot be read, or another job saves here; it is named.

        Source: `tf.train.CheckpointManager.restore_or_initialize`.
        """
        self._checkpoint.wait()
        skipped: list[str] = []
        for path in self._agreed():
            try:
                self._checkpoint.restore(path)
            except CheckpointDamagedError as error:
                self._damaged.add(path)
                skipped.append(leave_out(path, error))
                continue
            self._known[path] = identity_of(path)
            self._last_step = self._step()
            return str(path)
        if skipped:
            raise nothing_whole(self._directory, skipped)
        if self._init_fn is not None:
            self._init_fn()
        return None

    def wait(self) -> None:
        """Waits until the save that is under way is complete; raises what went wrong with it."""
        self._checkpoint.wait()

    sync = wait

    def close(self) -> None:
        """The same, at the end of the training; then other jobs may save in this folder."""
        try:
            self._checkpoint.wait()
        finally:
            self._owner.release()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self) -> int | None:
        counter = self._step_counter
        if counter is None:
            return None
        return int(counter() if callable(counter) else counter)

    def _too_soon(self, step: int | None) -> bool:
        if self._interval is None or step is None or self._last_step is None:
            return False
        return step - self._last_step < self._interval

    def _newest_first(self) -> list[Path]:
        found = numbered(self._directory, self._name)
        return [found[number] for number in sorted(found, reverse=True)]

    def _agreed(self) -> list[Path]:
        """The checkpoints that the first worker sees; others may not see them yet on a file system over the network.

        It becomes the owner of the folder before, so that no other job's checkpoints are taken for one's own.
        """
        cluster = committing.cluster()
        # The first worker alone owns and lists the folder, so that all try the same checkpoints in the same order.
        error = self._claimed() if cluster is None or cluster.rank == 0 else ""
        found = [str(path) for path in self._newest_first()]
        if cluster is not None:
            key = f"jaxtribute/latest/{cluster.number('latest')}"
            if cluster.rank == 0:
                cluster.set(key, json.dumps([error, found]))
            error, found = json.loads(cluster.get(key, committing.patience(cluster, self._timeout_s), of=0))
        if error:
            raise CheckpointError(error)
        return [Path(path) for path in found]

    def _claimed(self) -> str:
        """Becomes the owner of the folder; returns the reason if that is another job."""
        try:
            self._owner.claim()
        except CheckpointError as error:
            return str(error)
        except OSError as error:  # a folder to read from only
            _LOG.warning("nothing can be saved in %s: %s", self._directory, str(error))
        return ""

    def _prune(self, saved: Path) -> None:
        """Deletes what is too old or was never completed; the first worker does it, after each save."""
        # It may have taken the name of a damaged one.
        self._damaged.discard(saved)
        self._known[saved] = identity_of(saved)
        found = complete(self._directory, self._name)
        # A damaged checkpoint does not count, else too few that can be restored would stay; nor does the new one here,
        # which is never deleted: `1 - max_to_keep` below makes up for it.
        others = [number for number in sorted(found) if found[number] not in (*self._damaged, saved)]
        kept = self._kept.entries()
        for number in others[: 1 - self._max_to_keep or None] if self._max_to_keep is not None else []:
            if number in kept or self._begins_span(found[number]):
                kept.setdefault(number, self._preserved_at)
                continue
            # A name that no complete checkpoint has, in case that this is where the program ends.
            gone = Path(f"{found[number]}{UNFINISHED}")
            shutil.rmtree(gone, ignore_errors=True)
            standing(found[number]).rename(gone)
        if kept:
            self._kept.write(kept)
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
        # From its own time on, not from now: spans do not drift with the time that saving takes.
        self._preserved_at = written_at
        return True


def _number(value: Foreign) -> int:
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
