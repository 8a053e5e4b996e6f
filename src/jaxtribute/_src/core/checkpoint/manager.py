"""`CheckpointManager`: a folder of checkpoints, of which the last are kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, SupportsInt

from jaxtribute._src.core import settings
from jaxtribute._src.core.checkpoint import committing
from jaxtribute._src.core.checkpoint.checkpoint import Checkpoint
from jaxtribute._src.core.checkpoint.files import (
    check_folder,
    check_name,
    check_path,
    number_of,
    present,
    standing,
    stem,
)
from jaxtribute._src.core.checkpoint.folder import (
    latest_of,
    latest_of_any_name,
    leave_out,
    names_in,
    nothing_whole,
    paths_of,
)
from jaxtribute._src.core.checkpoint.owner import Owner
from jaxtribute._src.core.checkpoint.retention import Retention
from jaxtribute._src.core.checkpoint.series import Series
from jaxtribute._src.core.types import Foreign
from jaxtribute.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointDamagedError,
    CheckpointError,
    CheckpointUnreadableError,
)

_LOG = logging.getLogger(__name__)
_HOUR_S = 3600.0
_LARGEST = 2**63 - 1


class CheckpointManager:
    """Saves checkpoints under numbered names into a folder, and deletes old ones.

    The latest one is that which was saved last, and the oldest are deleted first, whatever their numbers: after a
    training has gone back to an earlier checkpoint, or a new one was begun in an old folder, that is what it saves.

    Args:
      checkpoint: what is saved.
      directory: the folder, on a file system that all workers see; it is made if it does not exist.
      max_to_keep: how many of the last checkpoints stay; None keeps all.
      keep_checkpoint_every_n_hours: in addition, one for each such span of time since this object was made.
      checkpoint_name: what names start with: `{checkpoint_name}-{number}`.
      step_counter: a variable, a number or a function without arguments that says at which step the training is;
        needed for `checkpoint_interval`.
      checkpoint_interval: steps that must have passed since the last checkpoint for `save` to save.
      init_fn: called by `restore_or_initialize` if there is no checkpoint.
      last_checkpoint_step: the step of the last checkpoint before this object was made, from which the interval counts.
      block: whether `save` returns only once the checkpoint is complete.
      timeout_s: how long workers wait for each other; by default as long as for a step, at most ten minutes.

    In a cluster all workers make the same calls. From the first save or restore until `close` or the end of the program
    no other job can save under this name in this folder. Of several managers in one process the one that was made last
    takes over when it first saves; those made before, of another `Checkpoint`, raise at their next save.

    Raises:
      ArgumentError: a count or span that is not positive, an interval without a step counter, or a name or path that
        cannot be one.
      ArgumentTypeError: a name or path of another type.
      CheckpointError: a file is where the folder should be.

    Examples:
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     manager = jd.CheckpointManager(jd.Checkpoint(w=jd.Variable(1.0)), folder, max_to_keep=1)
      ...     paths = [manager.save() for _ in range(2)]
      ...     manager.sync()
      ...     [path.rsplit("/", 1)[1] for path in manager.checkpoints]
      ['ckpt-2']

    Source: `tf.train.CheckpointManager`.
    """

    _takes_any_name = False
    """True if one that was saved by another name is restored, as there is none by this manager's own."""

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
        last_checkpoint_step: int | None = None,
        *,
        block: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        settings.amount("keep_checkpoint_every_n_hours", keep_checkpoint_every_n_hours, above=True, optional=True)
        settings.whole("max_to_keep", max_to_keep, 1, optional=True)
        settings.whole("checkpoint_interval", checkpoint_interval, 1, optional=True)
        settings.whole("last_checkpoint_step", last_checkpoint_step, 0, optional=True)
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
        self._name = check_name(checkpoint_name, "checkpoint_name")
        self._interval = _Interval(checkpoint_interval, step_counter)
        self._interval.last = last_checkpoint_step
        self._init_fn, self._block, self._timeout_s = init_fn, block, timeout_s
        check_folder(self._directory)
        self._owner = Owner(self._directory, self._name, checkpoint)
        self._series = Series(self._directory, self._name)
        every_s = None if keep_checkpoint_every_n_hours is None else keep_checkpoint_every_n_hours * _HOUR_S
        past = checkpoint._past  # pyright: ignore[reportPrivateUsage]
        self._retention = Retention(self._directory, self._name, self._series, past, max_to_keep, every_s)
        self._unread = False
        self._read_only = ""
        self._taken: set[int] = set()
        """Numbers that were asked for, which counting up must not come to."""

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
        return self._interval.steps

    @property
    def read_only(self) -> str:
        """The reason why nothing can be saved in the folder, as `restore_or_initialize` has found; empty otherwise."""
        return self._read_only

    @property
    def checkpoints(self) -> list[str]:
        """The complete checkpoints in the folder, in the order in which they were saved."""
        return paths_of(entry for entry in self._series.entries() if entry.complete)

    @property
    def latest_checkpoint(self) -> str | None:
        """The whole checkpoint that was saved last, or None.

        Its files are read once and compared with their checksums, unless this object has saved or restored it.

        Raises:
          CheckpointDamagedError: there are checkpoints, and all that its training has come through are damaged.
          CheckpointUnreadableError: the system cannot read it now.
          CheckpointError: an earlier version did not note which one was the last.
        """
        own = latest_of(self._series, self._directory, self._retention.known)
        return latest_of_any_name(self._directory) if own is None and self._takes_any_name else own

    def save(self, checkpoint_number: SupportsInt | None = None, check_interval: bool = True) -> str | None:
        """Saves a checkpoint, in the background unless `block` was given.

        Args:
          checkpoint_number: its number, an int, a variable or an array of one; by default `save_counter`, which each
            save counts up, past numbers that this training has asked for.
          check_interval: whether to leave it out where `checkpoint_interval` steps have not passed.

        Returns:
          The path where it will be, or None if it was left out.

        Raises:
          CheckpointError: the save before this one failed, or with `block` this one. Another job saves here, or a later
            manager of this process has taken over, or what could not be read would be replaced.
          DeadlineError: likewise, because a worker did not come.

        Source: `tf.train.CheckpointManager.save`.
        """
        step = self._interval.step()
        if check_interval and self._interval.is_too_soon(step):
            return None
        with self._checkpoint._alone:  # pyright: ignore[reportPrivateUsage]  # no other thread counts meanwhile
            self._checkpoint.wait()
            # Counted only now: where the save before has failed, no number is used up.
            number = self._next_number(checkpoint_number)
            target = self._directory / f"{self._name}-{number}"
            self._check_unread(target)
            path = self._checkpoint.write(
                target,
                block=self._block,
                timeout_s=self._timeout_s,
                committed=lambda: self._retention.settle(target),
                owner=self._owner,
            )
            self._interval.last = step
        return path

    def restore_or_initialize(self) -> str | None:
        """Restores the whole checkpoint that was saved last, or calls `init_fn` if there is none at all.

        Of one that is damaged a warning says so, and the one before it is taken, of those that its training has come
        through. One that cannot be read now is no such one: it may be whole.

        Returns:
          The path of the checkpoint, or None.

        Raises:
          CheckpointMismatchError: the checkpoint does not fit.
          CheckpointDamagedError: there are checkpoints, and all that the last one's training has come through are
            damaged.
          CheckpointUnreadableError: the system cannot read it now, nor after a moment.
          CheckpointError: another job saves here; it is named. Or an earlier version did not note which was the last.

        Source: `tf.train.CheckpointManager.restore_or_initialize`.
        """
        self._checkpoint.wait()
        skipped: list[str] = []
        line, others = self._agreed()
        for place, path in enumerate(line):
            try:
                self._checkpoint.restore(path)
            except CheckpointDamagedError as error:
                self._retention.note_damaged(path)
                skipped.append(leave_out(path, error))
                continue
            except CheckpointUnreadableError:
                self._unread = True
                raise
            self._retention.note_whole(path)
            self._taken.update(self._ahead(line[place:]))
            self._unread = False
            self._interval.last = self._interval.step()
            return str(path)
        if skipped:
            raise nothing_whole(self._directory, skipped, others)
        if self._init_fn is not None:
            self._init_fn()
        return None

    def _next_number(self, asked: SupportsInt | None) -> int:
        own = None if asked is None else _number(asked)
        number = self._checkpoint.count()
        if own is not None:
            self._taken.add(own)
            return own
        while number in self._taken:
            number = self._checkpoint.count()
        return number

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

    def _ahead(self, line: Sequence[Path]) -> Iterator[int]:
        """The numbers that the counter has still to come to, of saves with numbers of the user's own."""
        for path in line:
            number = number_of(path)
            if number is not None and stem(path) == self._name and number > self._checkpoint.save_counter:
                yield number

    def _check_unread(self, target: Path) -> None:
        """Checks that a save does not take the place of what could not be read, and may be whole."""
        if self._unread and present(standing(target)):
            raise CheckpointError(
                f"{target} is not replaced, as restore_or_initialize() could not read the folder. HINT: call it again; "
                "or restore a checkpoint by its path, and save in a folder of its own."
            )

    def _agreed(self) -> tuple[list[Path], list[str]]:
        """The checkpoints that may be restored, the last first, as the first worker sees them; and all others.

        Other workers may not see them yet on a file system over the network. The first becomes the owner of the folder
        before, so that no other job's checkpoints are taken for one's own.
        """
        cluster, group = committing.saving_cluster(), committing.together()
        # The first worker alone owns and lists the folder, so that all try the same checkpoints in the same order.
        is_first = group is None and (cluster is None or cluster.rank == 0)
        listed = self._listed() if is_first else _Listed()
        if group is not None:
            told = group.first(f"the checkpoints in {self._directory}", lambda: json.dumps(self._listed()))
            listed = _Listed(*json.loads(told))
        if cluster is not None:
            key = f"jaxtribute/latest/{cluster.number('latest')}"
            if cluster.rank == 0:
                cluster.set(key, json.dumps(listed))
            listed = _Listed(*json.loads(cluster.get(key, cluster.patience(self._timeout_s), of=0)))
        self._read_only = listed.read_only
        if listed.error:
            self._unread = listed.kind == CheckpointUnreadableError.__name__
            raise (CheckpointUnreadableError if self._unread else CheckpointError)(listed.error)
        return [Path(path) for path in listed.line], list(listed.others)

    def _listed(self) -> _Listed:
        read_only = ""
        try:
            try:
                self._owner.claim()
            except OSError as error:  # a folder to read from only
                read_only = str(error)
                _LOG.warning("nothing can be saved in %s: %s", self._directory, read_only)
            line, others = self._series.line()
            alone = not (line or others)
            if alone and self._takes_any_name and (stranger := latest_of_any_name(self._directory)) is not None:
                return _Listed(line=[stranger], read_only=read_only)
        except CheckpointError as problem:
            return _Listed(type(problem).__name__, str(problem))
        if strangers := names_in(self._directory) if alone else {}:
            _LOG.warning(
                "%s has no checkpoint by the name %s, and training begins anew beside %s. HINT: pass its name as "
                "checkpoint_name=, or restore it by its path, checkpoint.restore(path).",
                self._directory,
                self._name,
                ", ".join(map(str, strangers.values())),
            )
        return _Listed("", "", paths_of(line)[:99], paths_of(others)[:99], read_only)


class _Listed(NamedTuple):
    """Contents of the folder, as the first worker finds them.

    Attributes:
      kind: the class of an error.
      error: its text; empty if there is none.
      line: the checkpoints that may be restored, the last first.
      others: all others.
      read_only: the reason why nothing can be saved there; empty if it can.
    """

    kind: str = ""
    error: str = ""
    line: Sequence[str] = ()
    others: Sequence[str] = ()
    read_only: str = ""


class _Interval:
    """Steps that must pass between two saves.

    Args:
      steps: how many; None for any.
      counter: says at which step the training is.

    Attributes:
      last: the step of the last save or restore.
    """

    def __init__(self, steps: int | None, counter: SupportsInt | Callable[[], SupportsInt] | None) -> None:
        self.steps, self._counter = steps, counter
        self.last: int | None = None

    def step(self) -> int | None:
        """The step that the training is at."""
        counter = self._counter
        if counter is None:
            return None
        value: Foreign = counter() if callable(counter) else counter
        try:
            return int(value)
        except (TypeError, ValueError, OverflowError):
            raise ArgumentTypeError(
                f"step_counter is {value!r}, a {type(value).__name__}. HINT: pass a whole number, a variable, or a "
                "function that returns one."
            ) from None

    def is_too_soon(self, step: int | None) -> bool:
        """True if too few steps have passed at this one."""
        if self.steps is None or step is None or self.last is None:
            return False
        # A smaller step than before: the training has gone back.
        return 0 <= step - self.last < self.steps


def _number(value: Foreign) -> int:
    """A checkpoint's number.

    Raises:
      ArgumentError: negative, not whole, or beyond 64 bits.
      ArgumentTypeError: no number.
    """
    try:
        if isinstance(value, (str, bool)):
            raise TypeError
        number = int(value)
        exact = number == value if isinstance(value, int) else float(number) == float(value)
    except OverflowError:
        number, exact = -1, False  # infinite, or too large for a float
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"checkpoint_number={value!r} is a {type(value).__name__}. HINT: pass a whole number, or a variable of one."
        ) from None
    if not exact or not 0 <= number <= _LARGEST:
        shown = repr(value) if not isinstance(value, int) or number.bit_length() < 99 else "an int beyond 64 bits"
        raise ArgumentError(
            f"checkpoint_number={shown} is not a whole number from 0 to 2**63 - 1. HINT: pass your step."
        )
    return number
