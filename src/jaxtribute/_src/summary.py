"""Scalars for TensorBoard: written once in a cluster, and without making a training step wait.

Needs the extra `jaxtribute[tensorboard]`: tensorboardX, which writes TensorBoard's event files without TensorFlow.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import jax
import numpy as np

from jaxtribute._src.types import Leaf
from jaxtribute._src.values.distributed import PerReplica
from jaxtribute._src.values.operators import operand
from jaxtribute.errors import ArgumentError, ArgumentTypeError, MissingLibraryError

_IN_FLIGHT = 16
_FLUSH_S = 5.0
"""Seconds after which the file is brought to the disk, for a TensorBoard that looks on."""


class Writer:
    """Writes scalars to a TensorBoard event file, on the first worker only.

    Every worker makes and uses it alike; on the others nothing is written, and no folder is made. An array that a
    step is still computing is not waited for: it is written when it is there, or 16 values later.

    Args:
      directory: where the event file goes; TensorBoard shows each folder as a run.
      step: the number of the first step, for a training that goes on from a checkpoint.

    Raises:
      MissingLibraryError: tensorboardX is not installed.

    Source: `tf.summary.create_file_writer`.
    """

    def __init__(self, directory: str | os.PathLike[str], step: int = 0) -> None:
        self.step = step
        """The step that values belong to where `write` is given none."""
        self._waiting: deque[tuple[str, Any, int]] = deque()
        self._closed = False
        self._file = _EventFile(directory) if jax.process_index() == 0 else None

    def write(self, values: Mapping[str, Any] | None = None, *, step: int | None = None, **named: Leaf) -> None:
        """Writes the scalars of one step.

        Args:
          values: numbers, arrays of one element, variables or mirrored values, by name.
          step: the step's number; by default that of the last call and one more.
          named: likewise, for names that are Python names: `writer.write(loss=loss)`.

        Raises:
          ArgumentTypeError: a value that is no single number, such as one a replica.
          ArgumentError: the writer is closed.

        Source: `tf.summary.scalar`.
        """
        if self._closed:
            raise ArgumentError(f"this writer was closed before step {self.step}. HINT: write before close().")
        given = {**(values or {}), **named}
        found = {name: _scalar(name, value) for name, value in given.items()}
        here = self.step if step is None else step
        self.step = here + 1
        if self._file is None:
            return
        self._waiting.extend((name, value, here) for name, value in found.items())
        while self._waiting and (len(self._waiting) > _IN_FLIGHT or _ready(self._waiting[0][1])):
            self._write_first()

    def flush(self) -> None:
        """Waits for all values and brings them to the disk."""
        while self._waiting:
            self._write_first()
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Writes what is left and closes the file; further calls do nothing.

        Source: `tf.summary.SummaryWriter.close`.
        """
        if not self._closed:
            self.flush()
            self._closed = True
            if self._file is not None:
                self._file.close()

    def _write_first(self) -> None:
        name, value, step = self._waiting.popleft()
        assert self._file is not None
        self._file.add(name, float(np.asarray(value).reshape(())), step)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _EventFile:
    """An event file of tensorboardX's, written by this thread: its `SummaryWriter` has a queue and a thread of its own.

    Args:
      directory: the folder, made if need be.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter, directory_check
        except ImportError as error:
            raise MissingLibraryError(
                "writing scalars for TensorBoard needs tensorboardX, which is not installed. "
                "HINT: pip install 'jaxtribute[tensorboard]'."
            ) from error
        folder = os.fspath(directory)
        directory_check(folder)
        self._events: Any = EventsWriter(f"{folder}/events")
        self._flushed = time.monotonic()

    def add(self, name: str, value: float, step: int) -> None:
        from tensorboardX.proto import event_pb2
        from tensorboardX.summary import scalar

        events: Any = event_pb2
        self._events.write_event(events.Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
        if time.monotonic() - self._flushed > _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        self._flushed = time.monotonic()
        self._events.flush()

    def close(self) -> None:
        self._events.close()


def _scalar(name: str, value: Leaf) -> Any:
    """The number or array behind a value."""
    if not isinstance(value, PerReplica):
        value = operand(value)
        if isinstance(value, (bool, int, float, np.generic)):
            return value
        if isinstance(value, (jax.Array, np.ndarray)) and value.size == 1:
            # One device's copy is enough, and it can be asked whether it is ready.
            return value.addressable_data(0) if isinstance(value, jax.Array) else value
    shape = getattr(value, "shape", None)
    raise ArgumentTypeError(
        f"{name} is a {type(value).__name__}{'' if shape is None else f' of shape {shape}'} and no single number. "
        "HINT: reduce it first, strategy.reduce('MEAN', value, axis=None)."
    )


def _ready(value: Leaf) -> bool:
    array: Any = value
    return not isinstance(value, jax.Array) or array.is_ready()
