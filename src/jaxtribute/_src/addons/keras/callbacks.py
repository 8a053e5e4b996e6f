"""Keras's TensorBoard callback, which writes through `jd.summary.Writer` in place of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
import numpy as np

from jaxtribute._src.addons.tracking.protocol import Tracker
from jaxtribute._src.addons.tracking.summary import Writer
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import Leaf


class TensorBoard(keras.callbacks.TensorBoard):
    """A callback that writes losses, metrics and histograms of weights for TensorBoard, without TensorFlow.

    Folders, names and steps are those of Keras's own: `train` and `validation` below `log_dir`, `epoch_loss` by
    epochs, `batch_loss` by batches, `evaluation_loss_vs_iterations` by steps of the optimizer. Of several workers the
    first writes. There is no graph: JAX has none, and `write_graph` has no effect.

    Args:
      log_dir: the folder.
      options: the arguments of `keras.callbacks.TensorBoard`, all but `write_images`.
      trackers: where figures go, as in `jd.summary.Writer`.

    Raises:
      ArgumentError: `write_images=True`.
      MissingLibraryError: (when training begins) the library of a tracker is not installed.

    Source: `keras.callbacks.TensorBoard`.
    """

    def __init__(
        self, log_dir: Leaf = "logs", *args: Leaf, trackers: Sequence[str | Tracker] = ("tensorboard",), **options: Leaf
    ) -> None:
        super().__init__(log_dir, *args, **options)
        if self.write_images:
            raise ArgumentError("write_images=True: pictures of weights are not written. HINT: set histogram_freq=1.")
        self._summaries = _Summaries(trackers)

    @property
    def summary(self) -> Any:
        """The functions that stand for `tf.summary`."""
        return self._summaries

    def _write_keras_model_summary(self) -> None:
        """Writes no graph."""


class _Summaries:
    """The functions of `tf.summary` that Keras's callback calls.

    Args:
      trackers: where figures go.
    """

    def __init__(self, trackers: Sequence[str | Tracker]) -> None:
        self._trackers = trackers
        # A writer's conditions end with it: what is written for an epoch does not depend on which batch was the last.
        self._frames: list[tuple[Writer, list[Callable[[], bool]]]] = []

    def create_file_writer(self, directory: str) -> _FileWriter:
        """A writer of a folder."""
        return _FileWriter(Writer(directory, trackers=self._trackers), self)

    @contextmanager
    def writing(self, writer: Writer) -> Generator[None]:
        """Puts a writer in force."""
        self._frames.append((writer, []))
        try:
            yield
        finally:
            self._frames.pop()

    @contextmanager
    def record_if(self, condition: Callable[[], bool]) -> Generator[None]:
        """Writes only while a condition holds, by the writer in force."""
        conditions = self._frames[-1][1]
        conditions.append(condition)
        try:
            yield
        finally:
            conditions.pop()

    def scalar(self, name: str, data: Leaf, step: Leaf) -> None:
        """Writes a number by the writer in force, if there is one."""
        for writer in self._recording():
            writer.write({name: np.asarray(data)}, step=int(step))

    def histogram(self, name: str, data: Leaf, step: Leaf) -> None:
        """Writes the distribution of an array's values."""
        for writer in self._recording():
            writer.histogram(name, np.asarray(keras.ops.convert_to_numpy(data)), step=int(step))

    def _recording(self) -> list[Writer]:
        """The writer that is in force; none if there is none, or it is not to write."""
        if not self._frames:
            return []
        writer, conditions = self._frames[-1]
        return [writer] if all(condition() for condition in conditions) else []

    def trace_on(self, **_: bool) -> None:
        """Nothing: there is no graph to follow, and Keras starts JAX's profiler by itself."""

    def trace_export(self, **_: Leaf) -> None:
        """Nothing."""


class _FileWriter:
    """One writer, as `tf.summary.create_file_writer` gives it.

    Args:
      writer: what writes.
      summaries: those that it belongs to.
    """

    def __init__(self, writer: Writer, summaries: _Summaries) -> None:
        self._writer, self._summaries = writer, summaries
        self.flush, self.close = writer.flush, writer.close

    def as_default(self, step: Leaf = None) -> AbstractContextManager[None]:
        """Puts the writer in force."""
        return self._summaries.writing(self._writer)
