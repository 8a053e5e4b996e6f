"""`CheckpointManager`: a folder of checkpoints, of which the newest are kept."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from jaxtribute import settings
from jaxtribute.checkpoint import committing
from jaxtribute.checkpoint.checkpoint import Checkpoint
from jaxtribute.checkpoint.description import FILE, Description
from jaxtribute.errors import ArgumentError

_STATE = "checkpoints.json"
_HOUR_S = 3600.0


def latest_checkpoint(directory: Any, checkpoint_name: str = "ckpt") -> str | None:
    """The complete checkpoint of the highest number in a folder, or None where there is none.

    Args:
      directory: the folder.
      checkpoint_name: what the checkpoints' names start with.

    Source: `tf.train.latest_checkpoint`.
    """
    found = _numbered(Path(directory).expanduser().absolute(), checkpoint_name)
    return str(found[max(found)]) if found else None


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
      ArgumentError: a count or span that is not positive, or an interval without a step counter.

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
        self._directory = Path(directory).expanduser().absolute()
        self._max_to_keep = max_to_keep
        self._every_s = None if keep_checkpoint_every_n_hours is None else keep_checkpoint_every_n_hours * _HOUR_S
        self._name = checkpoint_name
        self._step_counter, self._interval = step_counter, checkpoint_interval
        self._init_fn, self._block, self._timeout_s = init_fn, block, timeout_s
        self._last_step: int | None = None
        self._preserved_at = self._recalled()

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
        found = _numbered(self._directory, self._name)
        return [str(found[number]) for number in sorted(found)]

    @property
    def latest_checkpoint(self) -> str | None:
        """The newest complete checkpoint, or None."""
        return next(reversed(self.checkpoints), None)

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
        number = self._checkpoint.count() if checkpoint_number is None else int(checkpoint_number)
        path = self._checkpoint.write(
            self._directory / f"{self._name}-{number}",
            block=self._block,
            timeout_s=self._timeout_s,
            committed=self._prune,
        )
        self._last_step = step
        return path

    def restore_or_initialize(self) -> str | None:
        """Restores the newest checkpoint, or calls `init_fn` where there is none.

        Returns:
          The path of the checkpoint, or None.

        Raises:
          CheckpointMismatchError: it does not fit.
          CheckpointError: it cannot be read.

        Source: `tf.train.CheckpointManager.restore_or_initialize`.
        """
        self._checkpoint.wait()
        path = self._agreed(self.latest_checkpoint)
        if path is not None:
            self._checkpoint.restore(path)
            self._last_step = self._step()
        elif self._init_fn is not None:
            self._init_fn()
        return path

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

    def _agreed(self, path: str | None) -> str | None:
        """What the first worker sees, which others may not see yet on a file system over the network."""
        cluster = committing.cluster()
        if cluster is None:
            return path
        key = f"jaxtribute/latest/{cluster.number('latest')}"
        if cluster.rank == 0:
            cluster.set(key, path or "")
        return cluster.get(key, committing.patience(cluster, self._timeout_s), of=0) or None

    def _prune(self) -> None:
        """Deletes what is too old or was never completed; the first worker does it, after each save."""
        found = _numbered(self._directory, self._name)
        old = sorted(found)[: -self._max_to_keep] if self._max_to_keep is not None else []
        for number in old:
            if not self._stays(number, found[number]):
                # A name that no complete checkpoint has, in case that this is where the program ends.
                found[number].rename(f"{found[number]}{committing.UNFINISHED}")
        for left in self._directory.glob(f"{self._name}-*{committing.UNFINISHED}"):
            shutil.rmtree(left, ignore_errors=True)

    def _stays(self, number: int, path: Path) -> bool:
        """Whether a checkpoint is the one of its span of time."""
        if any(number == kept for kept, _ in self._entries()):
            return True
        if self._every_s is None:
            return False
        written_at = Description.read(path).written_at
        if written_at - self._preserved_at < self._every_s:
            return False
        self._preserved_at = written_at
        self._remember(number)
        return True

    def _entries(self) -> list[tuple[int, float]]:
        """The checkpoints that stay for good, with their times."""
        state = self._directory / _STATE
        entries: dict[str, Any] = json.loads(state.read_text()) if state.is_file() else {}
        return [(int(number), float(at)) for number, at in entries.get(self._name, [])]

    def _recalled(self) -> float:
        """When the last checkpoint that stays for good was written; else now."""
        return max((at for _, at in self._entries()), default=time.time())

    def _remember(self, number: int) -> None:
        state = self._directory / _STATE
        entries: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
        entries[self._name] = [*self._entries(), (number, self._preserved_at)]
        fresh = state.with_suffix(".new")
        fresh.write_text(json.dumps(entries) + "\n")
        fresh.replace(state)


def _numbered(directory: Path, name: str) -> dict[int, Path]:
    """The complete checkpoints of a folder by their numbers."""
    if not directory.is_dir():
        return {}
    pattern = re.compile(re.escape(name) + r"-(\d+)")
    matches = ((pattern.fullmatch(path.name), path) for path in directory.iterdir())
    return {int(match[1]): path for match, path in matches if match is not None and (path / FILE).exists()}
