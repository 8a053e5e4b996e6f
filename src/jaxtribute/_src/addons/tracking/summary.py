"""Figures of a training: written once in a cluster, and without making a training step wait."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import PerReplica, Variable
from jaxtribute._src.addons.tracking.choosing import chosen, sender
from jaxtribute._src.addons.tracking.protocol import Tracker
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from jaxtribute.extending import Kinds, operand
from jaxtribute.typing import ArrayLike, Foreign, Json

_IN_FLIGHT = 16


class Writer:
    """Writes scalars, histograms, texts and settings to one tracker or several, on the first worker only.

    Every worker makes and uses it alike; on the others nothing is written, and no folder is made. An array that a
    step is still computing is not waited for: it is written when it is there, or 16 values later. A tracker that is
    slow, raises or hangs costs figures and a warning in the log, and no step.

    Args:
      directory: where files go; TensorBoard shows each folder as a run.
      step: the number of the first step, for a training that goes on from a checkpoint.
      trackers: names (`tensorboard`, `wandb`, `mlflow`, `csv`, `jsonl`) or objects with the methods of `Tracker`. Names
        in the environment variable `JAXTRIBUTE_TRACK`, which `jaxtribute launch --track` sets, are added.

    Raises:
      MissingLibraryError: the library of a tracker is not installed.
      ArgumentError: there is no tracker of a name.
      ArgumentTypeError: an object is neither a name nor a tracker.

    Examples:
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with jd.summary.Writer(folder, trackers=["csv"]) as writer:
      ...         writer.write(loss=0.5)
      ...     os.listdir(folder)
      ['metrics.csv']

    Source: `tf.summary.create_file_writer`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        step: int = 0,
        *,
        trackers: Sequence[str | Tracker] = ("tensorboard",),
    ) -> None:
        self.step: int = step
        """The step that values belong to where `write` is given none."""
        self._waiting: deque[tuple[str, str, Foreign, int, float]] = deque()
        self._closed = False
        asked = chosen(trackers)
        first = jax.process_index() == 0
        # Values are taken on every worker, as reducing one may need all of them; the first alone writes.
        self._senders = [sender(one, Path(os.fspath(directory))) for one in asked] if first else []

    def write(
        self, values: Mapping[str, ArrayLike] | None = None, *, step: int | None = None, **named: ArrayLike
    ) -> None:
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
        self._check_open()
        given = {**(values or {}), **named}
        found = {name: _scalar(name, value) for name, value in given.items()}
        here = self.step if step is None else step
        self.step = here + 1
        self._take("scalars", "", found, here)

    def histogram(self, name: str, values: ArrayLike, *, step: int | None = None) -> None:
        """Writes the distribution of an array's values.

        Args:
          name: of the distribution.
          values: an array of any shape, a variable or a mirrored value.
          step: the step's number; by default that of the last `write`.

        Raises:
          ArgumentTypeError: a value that differs between replicas.
          ArgumentError: the writer is closed.

        Source: `tf.summary.histogram`.
        """
        self._check_open()
        array = operand(values) if not isinstance(values, PerReplica) else None
        if not isinstance(array, (jax.Array, np.ndarray)):
            raise ArgumentTypeError(
                f"{name} is a {type(values).__name__} and no array with one value for all replicas. "
                "HINT: reduce it first, strategy.reduce('MEAN', value, axis=None)."
            )
        # A copy: the next step may take the array's memory over.
        self._take("histogram", name, jnp.copy(array), self._last(step))

    def text(self, name: str, text: str, *, step: int | None = None) -> None:
        """Writes a text, such as a sample of what a model generates.

        Args:
          name: of the text.
          text: what it says.
          step: the step's number; by default that of the last `write`.

        Raises:
          ArgumentError: the writer is closed.

        Source: `tf.summary.text`.
        """
        self._check_open()
        # Halves of surrogates, as in some names of files, are shown as escapes: no tracker's files can hold them.
        readable = str(text).encode("utf-8", "backslashreplace").decode()
        self._take("text", name, readable, self._last(step))

    def configure(self, settings: Mapping[str, Json] | None = None, **named: Json) -> None:
        """Writes the settings of the training, such as the learning rate and the size of a batch.

        Args:
          settings: values that JSON can hold, by name.
          named: likewise: `writer.configure(rate=0.1)`.

        Raises:
          ArgumentError: the writer is closed.
        """
        self._check_open()
        self._take("configure", "", {**(settings or {}), **named}, self._last(None))

    def flush(self) -> None:
        """Waits for all values, and half a minute at most for the trackers to bring them to where others see them."""
        self._write_until(0)
        for one in self._senders:
            one.flush()

    def close(self) -> None:
        """Writes what is left and ends the tracking; further calls do nothing.

        Source: `tf.summary.SummaryWriter.close`.
        """
        if not self._closed:
            self._write_until(0)
            self._closed = True
            for one in self._senders:
                one.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ArgumentError(f"this writer was closed before step {self.step}. HINT: write before close().")

    def _last(self, step: int | None) -> int:
        return max(self.step - 1, 0) if step is None else step

    def _take(self, kind: str, name: str, value: Foreign, step: int) -> None:
        if self._senders:
            self._waiting.append((kind, name, value, step, time.time()))
            self._write_until(_IN_FLIGHT)

    def _write_until(self, most: int) -> None:
        """Writes what is computed, and waits for the first values where more than `most` are left."""
        # In their order: one that is ready waits for those before it, so that steps only grow in the files.
        while self._waiting and (len(self._waiting) > most or _ready(self._waiting[0][2])):
            self._write_first()

    def _write_first(self) -> None:
        kind, name, value, step, moment = self._waiting.popleft()
        if kind == "scalars":
            # Waits where an array is still being computed, which `_write_until` allows only where many values are
            # waiting.
            numbers = {key: float(np.asarray(one).reshape(())) for key, one in value.items()}
            with Kinds.METRICS.during(self, str(step), step, numbers):
                self._send(kind, numbers, step, moment)
        elif kind == "histogram":
            self._send(kind, name, np.asarray(value, np.float64).reshape(-1), step, moment)
        elif kind == "text":
            self._send(kind, name, value, step, moment)
        else:
            self._send(kind, value)

    def _send(self, kind: str, *arguments: Foreign) -> None:
        for one in self._senders:
            one.send(kind, *arguments)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _scalar(name: str, value: Foreign) -> Foreign:
    """The number or array behind a value."""
    if not isinstance(value, PerReplica):
        array = operand(value)
        if isinstance(array, (bool, int, float, np.generic)):
            return array
        if isinstance(array, (jax.Array, np.ndarray)) and array.size == 1:
            if isinstance(value, Variable):
                array = jnp.copy(array)  # the next step takes its memory over
            # One device's copy is enough, and it can be asked whether it is ready.
            return array.addressable_data(0) if isinstance(array, jax.Array) else array
    shape = getattr(value, "shape", None)
    raise ArgumentTypeError(
        f"{name} is a {type(value).__name__}{'' if shape is None else f' of shape {shape}'} and no single number. "
        "HINT: reduce it first, strategy.reduce('MEAN', value, axis=None)."
    )


def _ready(value: Foreign) -> bool:
    """True if the arrays in a value are computed."""
    arrays: list[Foreign] = [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array)]
    return all(array.is_ready() for array in arrays)
