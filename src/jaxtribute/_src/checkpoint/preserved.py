"""The checkpoints of a folder that stay for good, one for each span of time, in a small file of their own."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from jaxtribute._src.checkpoint.files import complete, write_text

_LOG = logging.getLogger(__name__)


class Preserved:
    """Records the checkpoints of one name that stay, and their times of writing.

    Args:
      directory: the folder.
      name: what the checkpoints' names start with.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._file = directory / f".{name}.kept.json"

    def entries(self) -> dict[int, float]:
        """The numbers of those that stay, with their times in seconds since 1970.

        A file that cannot be read says nothing of what may be deleted, so all that is there now stays.
        """
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return {int(number): float(at) for number, at in found}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            numbers = complete(self._directory, self._name)
            _LOG.warning(
                "%s cannot be read: %s. All checkpoints that are there stay: %s. HINT: delete what is not needed.",
                self._file,
                f"{type(error).__name__}: {error}",  # a log that kept the error would keep all its traceback knows
                sorted(numbers),
            )
            return dict.fromkeys(numbers, time.time())

    def write(self, entries: dict[int, float]) -> None:
        """Writes the file anew, so that there is never half of it."""
        fresh = self._file.with_suffix(".new")
        write_text(fresh, json.dumps(list(entries.items())) + "\n")
        fresh.replace(self._file)
