"""TensorBoard's event files, written without TensorFlow. Needs the extra `jaxtribute[tensorboard]`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxtribute.typing import Foreign, HostArray, Json

_BINS = 64
_FLUSH_S = 5.0
"""Seconds after which the file is brought to the disk, for a TensorBoard that looks on."""


class EventFile:
    """Event file in a folder.

    Args:
      directory: the folder, made if need be.
    """

    def __init__(self, directory: Path) -> None:
        from tensorboardX.event_file_writer import EventsWriter, directory_check

        directory_check(str(directory))
        self._events: Foreign = EventsWriter(f"{directory}/events")
        self._flushed = time.monotonic()

    def _write(self, summary: Foreign, step: int, time_s: float) -> None:
        from tensorboardX.proto import event_pb2

        events: Foreign = event_pb2
        self._events.write_event(events.Event(wall_time=time_s, step=step, summary=summary))
        if time.monotonic() - self._flushed > _FLUSH_S:
            self.flush()

    def scalars(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        """Writes an event for each number."""
        from tensorboardX.summary import scalar

        for name, value in values.items():
            self._write(scalar(name, value), step, time_s)

    def histogram(self, name: str, values: HostArray, step: int, time_s: float) -> None:
        """Writes an event, of 64 equal bins."""
        from tensorboardX.summary import histogram

        finite = values[np.isfinite(values)]
        if len(finite):
            self._write(histogram(name, finite, _BINS), step, time_s)

    def text(self, name: str, text: str, step: int, time_s: float) -> None:
        """Writes an event for the text tab."""
        from tensorboardX.summary import text as text_summary

        event = text_summary(name, text)
        event.value[0].tag = name  # as TensorFlow writes it; tensorboardX adds to the name
        self._write(event, step, time_s)

    def configure(self, settings: Mapping[str, Json]) -> None:
        """Writes the settings as a text of JSON."""
        found = json.dumps(dict(settings), indent=1, default=str)
        # The text tab shows Markdown, in which indented lines stand as they are.
        self.text("configuration", "\n".join(f"    {line}" for line in found.splitlines()), 0, time.time())

    def flush(self) -> None:
        """Brings the events to the file."""
        self._flushed = time.monotonic()
        self._events.flush()

    def close(self) -> None:
        """Closes the file."""
        self._events.close()
