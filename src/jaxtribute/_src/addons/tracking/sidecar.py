"""`SidecarEvaluator`: evaluates each checkpoint that a training writes, in a process of its own."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxtribute.errors import CheckpointError, DeadlineError
from jaxtribute.extending import operand, settings

if TYPE_CHECKING:
    from jaxtribute import Checkpoint
    from jaxtribute._src.addons.tracking.summary import Writer


class SidecarEvaluator:
    """Watches the folder of a training's checkpoints and evaluates what comes, while the training goes on.

    Args:
      checkpoint: a `jd.Checkpoint` of this process's own model, with the names of the training's.
      evaluate: computes the metrics of the model as it is: a map of names to scalars.
      directory: the training's checkpoints.
      log_dir: where the metrics are written for TensorBoard (`jd.summary`); by default nowhere.
      max_evaluations: after how many to end; by default none.
      poll_s: how often to look for a new checkpoint, in seconds.
      timeout_s: how long to wait for one, in seconds; by default for ever.

    Source: `tf.keras.utils.SidecarEvaluator`, with a function in place of a Keras model and its data.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        evaluate: Callable[[], Mapping[str, Any]],
        directory: str | os.PathLike[str],
        *,
        log_dir: str | os.PathLike[str] | None = None,
        max_evaluations: int | None = None,
        poll_s: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        self._checkpoint, self._directory, self._log_dir = checkpoint, directory, log_dir
        self._evaluate = settings.function("evaluate", evaluate)
        self._limit = settings.whole("max_evaluations", max_evaluations, 1, optional=True)
        self._poll_s = settings.amount("poll_s", poll_s)
        self._timeout_s = settings.amount("timeout_s", timeout_s, optional=True)
        self._stopping = threading.Event()
        self._present: list[tuple[Path, Any]] | None = None
        self._seen: tuple[str, Any] | None = None
        self.results: list[dict[str, float]] = []
        """The metrics of each checkpoint, in order."""

    def start(self) -> dict[str, float]:
        """Evaluates checkpoints until `max_evaluations` or `stop`; returns the last metrics.

        Raises:
          DeadlineError: no new checkpoint came for `timeout_s`.
        """
        writer = None
        if self._log_dir is not None:
            from jaxtribute._src.addons.tracking.summary import Writer

            writer = Writer(self._log_dir)
        try:
            self._evaluate_all(writer)
        finally:
            if writer is not None:
                writer.close()
        return self.results[-1] if self.results else {}

    def _evaluate_all(self, writer: Writer | None) -> None:
        while not self._stopping.is_set() and (self._limit is None or len(self.results) < self._limit):
            seen = self._next()
            if seen is None:
                break
            try:
                self._checkpoint.restore(seen).expect_partial()
            except CheckpointError:
                if Path(seen).exists():
                    raise
                continue  # the training has deleted it meanwhile, so there is a newer one
            found = {name: float(np.asarray(operand(value))) for name, value in self._evaluate().items()}
            self.results.append(found)
            if writer is not None:
                writer.write(found, step=_number(seen, len(self.results)))

    def stop(self) -> None:
        """Ends `start` after the evaluation that is under way; callable from any thread."""
        self._stopping.set()

    def _next(self) -> str | None:
        """The checkpoint that was saved last, once it is another than before; None after `stop`."""
        from jaxtribute import latest_checkpoint
        from jaxtribute.extending import saves_in

        end = math.inf if self._timeout_s is None else time.monotonic() + self._timeout_s
        while time.monotonic() < end:
            # Also of one that a training has saved again under its old name, after it had gone back.
            present = saves_in(self._directory)
            if present != self._present:  # whether a checkpoint is whole takes long to find out
                found = latest_checkpoint(self._directory, "ckpt")
                self._present = present
                seen = None if found is None else (found, dict(saves_in(self._directory)).get(Path(found)))
                if found is not None and seen != self._seen:
                    self._seen = seen
                    return found
            # Waiting for the event, `stop` is noticed at once.
            if self._stopping.wait(self._poll_s):
                return None
        last = "" if self._seen is None else f" after {self._seen[0]}"
        raise DeadlineError(
            f"no checkpoint has come{last} in {self._directory} for {self._timeout_s} s. "
            "HINT: does the training still run, and write there?"
        )


def _number(path: str, default: int) -> int:
    """The number at the end of a checkpoint's name."""
    digits = path.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else default
