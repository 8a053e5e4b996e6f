"""Figures in plain files, a table or lines of JSON, which need no library to be read."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

from jaxtribute._src.addons.tracking.protocol import counted
from jaxtribute.typing import HostArray, Json

_COLUMNS = ("time", "step", "kind", "name", "value")


class Table:
    """Appends rows of time, step, kind, name and value to `metrics.csv`: new names need no new columns.

    Args:
      directory: the folder of the file, made if need be.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # A text may hold halves of surrogates, as names of files do: UTF-8 has none.
        # Line by line, so that a process that is killed has written them.
        self._file = (directory / "metrics.csv").open("a", 1, encoding="utf-8", errors="backslashreplace", newline="")
        self._rows = csv.writer(self._file)
        # A run that goes on has the heading already.
        if not self._file.tell():
            self._rows.writerow(_COLUMNS)

    def scalars(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        """Writes a row for each number."""
        for name, value in values.items():
            # With all digits, so that whoever reads it gets the same number.
            self._rows.writerow((f"{time_s:.3f}", step, "scalar", name, repr(value)))

    def histogram(self, name: str, values: HostArray, step: int, time_s: float) -> None:
        """Writes a row whose value is JSON: counts and edges of 30 equal bins."""
        found = json.dumps(counted(values))
        self._rows.writerow((f"{time_s:.3f}", step, "histogram", name, found))

    def text(self, name: str, text: str, step: int, time_s: float) -> None:
        """Writes a row."""
        self._rows.writerow((f"{time_s:.3f}", step, "text", name, text))

    def configure(self, settings: Mapping[str, Json]) -> None:
        """Writes a row for each setting."""
        for name, value in settings.items():
            self._rows.writerow(("", "", "configuration", name, json.dumps(value, default=str)))

    def flush(self) -> None:
        """Brings the rows to the file."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class JsonLines:
    """Appends an object of JSON per call to `metrics.jsonl`.

    Args:
      directory: the folder of the file, made if need be.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / "metrics.jsonl").open("a", 1, encoding="utf-8")

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
