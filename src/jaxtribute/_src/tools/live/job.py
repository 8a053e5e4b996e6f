"""Records of the launcher: when the job was started, how each start ended, and when it was over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from jaxtribute._src import observed
from jaxtribute._src.tools.live.files import JOB, Lines
from jaxtribute._src.types import Foreign, Json
from jaxtribute.errors import ConfigError

_MOST_TEXT = 20_000


class JobRecorder:
    """An observer that writes what the launcher of machine 0 does into the folder of a run.

    Args:
      directory: the run's folder, made if need be.
      command: the program of every rank with its arguments.

    Raises:
      ConfigError: the folder cannot be written to.
    """

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        try:
            self._lines = Lines(directory / JOB)
        except OSError as error:
            raise ConfigError(
                f"the launcher cannot record the run in {str(directory)!r}: {error}. HINT: name a folder for --run "
                "that this user may write to."
            ) from error
        self._write("job", {"command": " ".join(command)[:_MOST_TEXT]})

    def __call__(self, event: str, phase: str, facts: Foreign) -> None:
        """Notes a start of the job, or its end."""
        if event == "attempt":
            self._write(f"attempt {phase}", dict(facts) if phase == "start" else asdict(facts))

    def close(self, code: int | None) -> None:
        """Notes that the job is over, with its exit code, and closes the file."""
        self._write("over", {"code": code})
        self._lines.close()

    def run(self, launch: Callable[[], int]) -> int:
        """Calls `launch` under this observer's eyes, and returns its exit code."""
        observed.observers.append(self)
        code: int | None = None
        try:
            done = code = launch()
        finally:
            observed.observers.remove(self)
            self.close(code)
        return done

    def _write(self, kind: str, facts: dict[str, Json]) -> None:
        cut = {name: value[-_MOST_TEXT:] if isinstance(value, str) else value for name, value in facts.items()}
        try:
            self._lines.write({"k": kind, "t": round(time.time(), 3)} | cut)
        except OSError:
            return  # a full disk ends no job
