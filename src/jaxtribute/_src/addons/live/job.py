"""Records of the launcher: when the job was started, how each start ended, and when it was over."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtribute._src.addons.launcher.attempt import Outcome
from jaxtribute._src.addons.launcher.terminal import say
from jaxtribute._src.addons.live.files import JOB, Lines
from jaxtribute._src.addons.live.holding import hold
from jaxtribute.errors import ConfigError
from jaxtribute.experimental import Event, Observer, observe
from jaxtribute.extending import Kinds

if TYPE_CHECKING:
    from jaxtribute.typing import Json

_MOST_TEXT = 20_000
_SECRET = re.compile(r"--?[\w-]*(?:password|token|secret|key|credential)[\w-]*", re.IGNORECASE)


class JobRecorder(Observer):
    """An observer that writes what the launcher of machine 0 does into the folder of a run.

    Args:
      directory: the run's folder, made if need be.
      command: the program of every rank with its arguments.

    Raises:
      ConfigError: the folder cannot be written to, or another job is recorded there.
    """

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        try:
            self._owner = hold(directory, say)
            try:
                self._lines = Lines(directory / JOB)
            except OSError:
                self._owner.release()
                raise
        except OSError as error:
            raise ConfigError(
                f"the launcher cannot record the run in {str(directory)!r}: {error}. HINT: name a folder for --run "
                "that this user may write to."
            ) from error
        self._write("job", {"command": " ".join(_without_secrets(command))[:_MOST_TEXT]})

    def on_start(self, event: Event) -> None:
        """Notes a start of the job."""
        workers, nodes = event.arguments
        self._write("attempt start", {"restart": int(event.name), "workers": workers, "nodes": nodes})

    def on_end(self, event: Event) -> None:
        """Notes how a start of the job ended."""
        if isinstance(event.result, Outcome):
            self._write("attempt end", asdict(event.result))

    def note_island(self, outcome: Outcome, again: bool) -> None:
        """Notes the end of an island's process.

        Args:
          outcome: how it ended.
          again: whether the island is started again.
        """
        self._write("island end", asdict(outcome) | {"again": again})

    def close(self, code: int | None) -> None:
        """Notes that the job is over, with its exit code, and closes the file; other jobs may use the folder then."""
        self._write("over", {"code": code})
        self._lines.close()
        self._owner.release()

    def run(self, launch: Callable[[], int]) -> int:
        """Calls `launch` under this observer's eyes, and returns its exit code."""
        code: int | None = None
        try:
            with observe(self, Kinds.ATTEMPT.name):
                done = code = launch()
        finally:
            # A run without an end would look as if it went on.
            self.close(code)
        return done

    def _write(self, kind: str, facts: dict[str, Json]) -> None:
        # Of a traceback the end tells most.
        cut = {name: value[-_MOST_TEXT:] if isinstance(value, str) else value for name, value in facts.items()}
        try:
            self._lines.write({"k": kind, "t": round(time.time(), 3)} | cut)
        except OSError:
            return  # a full disk ends no job


def _without_secrets(command: Sequence[str]) -> list[str]:
    """The words of a command, with `***` for the values of options whose names are those of secrets."""
    words, hidden = list[str](), False
    for word in command:
        name, equals, _ = word.partition("=")
        secret = _SECRET.fullmatch(name) is not None
        if secret and equals:
            words.append(f"{name}=***")
        elif hidden and not word.startswith("-"):
            words.append("***")
        else:
            words.append(word)
        hidden = secret and not equals
    return words
