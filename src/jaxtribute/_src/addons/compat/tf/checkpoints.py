"""`tf.train.Checkpoint` and what belongs to it: this library's, with TensorFlow's arguments and defaults."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import jaxtribute as jd
from jaxtribute.checkpoint import RestoreStatus
from jaxtribute.errors import CheckpointError
from jaxtribute.extending import Callers, latest_of_any_name
from jaxtribute.typing import Leaf


def latest_checkpoint(checkpoint_dir: str | PathLike[str], latest_filename: str | None = None) -> str | None:
    """Returns the whole checkpoint of a folder that was saved last, or None if there is none.

    Args:
      checkpoint_dir: the folder.
      latest_filename: accepted for compatibility: no file keeps a list.

    Raises:
      CheckpointDamagedError: there are checkpoints, and all are damaged.

    Source: `tf.train.latest_checkpoint`.
    """
    return latest_of_any_name(checkpoint_dir)


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """No checkpoint at a path; caught as `tf.errors.NotFoundError`, and as the `CheckpointError` that it is."""


@contextmanager
def _telling_not_found(save_path: str | PathLike[str] | None) -> Generator[None]:
    """Raises `CheckpointNotFoundError` for the error of a path at which there is nothing."""
    try:
        yield
    except CheckpointError as error:
        # Subclasses tell of what is there.
        if type(error) is not CheckpointError or save_path is None or Path(save_path).expanduser().exists():
            raise
        raise CheckpointNotFoundError(str(error)).with_traceback(error.__traceback__) from None


class CheckpointOptions:
    """Accepted, and without effect. Source: `tf.train.CheckpointOptions`."""

    def __init__(self, **options: Leaf) -> None:
        vars(self).update(options)


class Checkpoint(jd.Checkpoint):
    """`jd.Checkpoint` that saves before it returns, and restores the names that checkpoint and program share.

    Variables that are made after a restore keep their initial values, but for the slots of Keras's optimizers. In a
    cluster all workers write one checkpoint, where the first worker says.

    Args:
      root: something to keep by the name `root`.
      **kwargs: as for `jd.Checkpoint`.

    Source: `tf.train.Checkpoint`.
    """

    def __init__(self, root: Leaf = None, **kwargs: Leaf) -> None:
        # Left out where it is None, which would be kept by the name `root`.
        super().__init__(**({} if root is None else {"root": root}), **kwargs)

    def save(
        self,
        file_prefix: str | PathLike[str],
        options: Leaf = None,
        *,
        block: bool = True,
        timeout_s: float | None = None,
    ) -> str:
        """Saves like `jd.Checkpoint.save`. Source: `tf.train.Checkpoint.save`."""
        return super().save(file_prefix, block=block, timeout_s=timeout_s)

    def write(
        self,
        path: str | PathLike[str],
        options: Leaf = None,
        *,
        block: bool = True,
        timeout_s: float | None = None,
        committed: Callable[[], None] = lambda: None,
        owner: Any = None,
    ) -> str:
        """Writes like `jd.Checkpoint.write`. Source: `tf.train.Checkpoint.write`."""
        # TensorFlow's programs give each worker another folder, and clean it up; here all write one checkpoint.
        return super().write(
            self._agreed_path(path), block=block, timeout_s=timeout_s, committed=committed, owner=owner
        )

    def restore(
        self, save_path: str | PathLike[str] | None, options: Leaf = None, *, strict: bool = False
    ) -> RestoreStatus:
        """Restores like `jd.Checkpoint.restore`; nothing at the path is a `tf.errors.NotFoundError`, too.

        Source: `tf.train.Checkpoint.restore`.
        """
        with _telling_not_found(save_path):
            status = super().restore(save_path, strict=strict)
            return super().restore(save_path, strict=strict) if self._makes_slots(status) else status

    def read(
        self, save_path: str | PathLike[str] | None, options: Leaf = None, *, strict: bool = False
    ) -> RestoreStatus:
        """Reads like `jd.Checkpoint.read`; nothing at the path is a `tf.errors.NotFoundError`, too.

        Source: `tf.train.Checkpoint.read`.
        """
        with _telling_not_found(save_path):
            status = super().read(save_path, strict=strict)
            return super().read(save_path, strict=strict) if self._makes_slots(status) else status

    def _makes_slots(self, status: RestoreStatus) -> bool:
        """Makes slots of Keras's optimizers that are not built yet, and were saved; True if there were such."""
        if "keras" not in sys.modules or not status.differences.unexpected:
            return False
        from jaxtribute._src.addons.keras.late_slots import build  # needs Keras

        built, left = build(self._trackables, status.differences.unexpected)
        for name in left:
            Callers.warn(
                f"the checkpoint has slots of the optimizer {name!r}, such as momentum, which is not built: they are "
                f"not restored, and its first step begins with zeros. HINT: before the restore call {name}.build("
                "variables), with the variables that it updates."
            )
        return built


class CheckpointManager(jd.CheckpointManager):
    """`jd.CheckpointManager` that saves before it returns.

    If there is no checkpoint by its name, it takes the one that was saved last into its folder by another, as
    `Checkpoint.save` does, and never deletes that.

    Source: `tf.train.CheckpointManager`.
    """

    _takes_any_name = True

    def __init__(
        self,
        checkpoint: jd.Checkpoint,
        directory: str | PathLike[str],
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Leaf = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        last_checkpoint_step: int | None = None,
        *,
        block: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(
            checkpoint,
            directory,
            max_to_keep,
            keep_checkpoint_every_n_hours,
            checkpoint_name,
            step_counter,
            checkpoint_interval,
            init_fn,
            last_checkpoint_step,
            block=block,
            timeout_s=timeout_s,
        )

    def save(self, checkpoint_number: Leaf = None, check_interval: bool = True, options: Leaf = None) -> str | None:
        """Saves like `jd.CheckpointManager.save`. Source: `tf.train.CheckpointManager.save`."""
        return super().save(checkpoint_number, check_interval)
