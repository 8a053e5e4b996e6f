"""`tf.summary` on `jd.summary.Writer`, whose files TensorBoard shows."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jaxtribute._src.addons.compat.tf.absences import telling_absent
from jaxtribute._src.addons.compat.tf.conversion import TensorLike, as_tensor
from jaxtribute.errors import ArgumentError, TraceError
from jaxtribute.extending import Context
from jaxtribute.summary import Writer


@telling_absent("tf.summary.SummaryWriter")
class SummaryWriter:
    """Writes events to a folder; `as_default()` makes it the one that `scalar` and its like write to.

    Args:
      logdir: the folder.

    Raises:
      MissingLibraryError: tensorboardX is not installed.

    Source: `tf.summary.SummaryWriter`.
    """

    def __init__(self, logdir: str) -> None:
        self.writer = Writer(logdir)

    @contextmanager
    def as_default(self, step: int | None = None) -> Generator[SummaryWriter]:
        """Writes here within a `with` block. Source: `tf.summary.SummaryWriter.as_default`."""
        _State.writers.append((self.writer, step))
        try:
            yield self
        finally:
            _State.writers.pop()
            self.writer.flush()

    def set_as_default(self, step: int | None = None) -> None:
        """Writes here from now on, until the `with` block around ends.

        Source: `tf.summary.SummaryWriter.set_as_default`.
        """
        _State.writers[-1:] = [(self.writer, step)]

    def flush(self) -> None:
        """Waits until all is written. Source: `tf.summary.SummaryWriter.flush`."""
        self.writer.flush()

    def close(self) -> None:
        """Writes what is left, and ends. Source: `tf.summary.SummaryWriter.close`."""
        self.writer.close()


class _State:
    """The writers of the `with` blocks around, each with its step."""

    writers: list[tuple[Writer, int | None]] = []  # noqa: RUF012 (one stack for the process)


def create_file_writer(logdir: str, max_queue: Any = None, flush_millis: Any = None, name: str | None = None) -> Any:
    """Makes a writer of events. Source: `tf.summary.create_file_writer`."""
    return SummaryWriter(str(logdir))


def scalar(name: str, data: TensorLike, step: Any = None, description: str | None = None) -> bool:
    """Writes a number; False if there is no writer. Source: `tf.summary.scalar`."""
    writer, step = _now("scalar", step)
    if writer is not None:
        writer.write({name: as_tensor(data)}, step=step)
    return writer is not None


def histogram(
    name: str, data: TensorLike, step: Any = None, buckets: int | None = None, description: str | None = None
) -> bool:
    """Writes the distribution of an array; False if there is no writer. Source: `tf.summary.histogram`."""
    writer, step = _now("histogram", step)
    if writer is not None:
        writer.histogram(name, as_tensor(data), step=step)
    return writer is not None


def text(name: str, data: TensorLike, step: Any = None, description: str | None = None) -> bool:
    """Writes a text; False if there is no writer. Source: `tf.summary.text`."""
    writer, step = _now("text", step)
    if writer is not None:
        writer.text(name, data.decode() if isinstance(data, bytes) else str(data), step=step)
    return writer is not None


def _now(what: str, step: Any) -> tuple[Writer | None, int | None]:
    if Context.current().executor.traced:
        raise TraceError(
            f"tf.summary.{what} was called while a function is traced, where no number is known. HINT: return the "
            "value from the function, and write it outside."
        )
    if not _State.writers:
        return None, None
    writer, default = _State.writers[-1]
    step = default if step is None else step
    if step is None:
        raise ArgumentError(f"tf.summary.{what} without a step. HINT: pass step=, here or to as_default().")
    return writer, int(np.asarray(step))
