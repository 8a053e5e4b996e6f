"""Figures as lines of JSON, in `metrics.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from jaxtribute._src.tracking.protocol import counted
from jaxtribute._src.types import HostArray, Json


class JsonLines:
    """Appends one object a call.

    Args:
      path: the file; its folder is made if need be.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def _write(self, step: int | None, time_s: float | None, facts: Mapping[str, Json]) -> None:
        when = {} if step is None else {"step": step, "time": time_s}
        self._file.write(json.dumps({**when, **facts}, default=str) + "\n")

    def scalars(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        """Writes `{"step", "time", "scalars": {name: number}}`."""
        self._write(step, time_s, {"scalars": dict(values)})

    def histogram(self, name: str, values: HostArray, step: int, time_s: float) -> None:
        """Writes `{"step", "time", "histogram": name, "counts", "edges"}`, of 30 equal bins."""
        self._write(step, time_s, {"histogram": name, **counted(values)})

    def text(self, name: str, text: str, step: int, time_s: float) -> None:
        """Writes `{"step", "time", "name", "text"}`."""
        self._write(step, time_s, {"name": name, "text": text})

    def configure(self, settings: Mapping[str, Json]) -> None:
        """Writes `{"configuration": {name: value}}`."""
        self._write(None, None, {"configuration": dict(settings)})

    def flush(self) -> None:
        """Brings the lines to the file."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def make(directory: Path) -> JsonLines:
    """The tracker of a folder."""
    return JsonLines(directory / "metrics.jsonl")
