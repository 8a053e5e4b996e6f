"""Keras's `BackupAndRestore` on several workers: one of them writes, and all go on from the same epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtribute._src.addons.keras import internals, multi_worker
from jaxtribute._src.addons.keras.trainer import strategy_of
from jaxtribute.errors import CheckpointError
from jaxtribute.typing import Foreign, Leaf


def backed_up(original: Callable[..., Any], callback: Foreign, *args: Leaf) -> None:
    """A method of `BackupAndRestore` that writes or deletes."""
    strategy = strategy_of(internals.model_of(callback))
    path = internals.backup_file(callback)
    if strategy is None:
        original(callback, *args)
    else:
        multi_worker.once(strategy, internals.model_of(callback), path, lambda _: original(callback, *args))


def deleted(original: Callable[..., Any], callback: Foreign, *args: Leaf) -> None:
    """`BackupAndRestore.on_train_end`: a worker that is late may still write into the folder that the first deletes."""
    strategy = strategy_of(internals.model_of(callback))
    if strategy is not None and strategy.extended.mesh.peers is not None:
        strategy.extended.mesh.peers.exchange("the end of Keras's backups", "")
    backed_up(original, callback, *args)


def restored(original: Callable[..., Any], callback: Foreign, *args: Leaf) -> None:
    """`BackupAndRestore.on_train_begin`: all workers begin where the first one does.

    Raises:
      CheckpointError: they have other backups.
    """
    strategy = strategy_of(internals.model_of(callback))
    if strategy is not None and strategy.extended.mesh.peers is not None:
        path, number = internals.backup_file(callback), strategy.extended.input_context().input_pipeline_id
        own = path.read_text(encoding="utf-8") if path.is_file() else ""
        told = strategy.extended.mesh.peers.exchange("backups of Keras", own)
        if len(set(told)) > 1:
            raise CheckpointError(
                f"BackupAndRestore finds {told[0] or 'nothing'} in {path} on worker 0, {own or 'nothing'} on worker "
                f"{number}. HINT: give a backup_dir on a disk that all workers share, or delete it on all."
            )
    original(callback, *args)
