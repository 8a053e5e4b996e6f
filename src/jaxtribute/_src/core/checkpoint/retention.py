"""`Retention`: which checkpoints of a series stay, and which are deleted after a save."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from jaxtribute._src.core.checkpoint.files import UNFINISHED, left_over, remove, standing
from jaxtribute._src.core.checkpoint.folder import KeptCheckpoints
from jaxtribute._src.core.checkpoint.series import Entry, Identity, Past, Series, identity_of
from jaxtribute.errors import CheckpointError

_LOG = logging.getLogger(__name__)


class Retention:
    """Deletes the checkpoints of a series that are too old, and those that were never completed.

    Args:
      directory: the folder.
      name: what their names start with.
      series: the checkpoints.
      past: those that the values come from.
      max_to_keep: how many of the last stay; None for all.
      every_s: in addition, the first of each such span of seconds.

    Attributes:
      known: the checkpoints that this object knows to be whole, as their files were then.
    """

    def __init__(
        self, directory: Path, name: str, series: Series, past: Past, max_to_keep: int | None, every_s: float | None
    ) -> None:
        self._directory, self._name, self._series, self._past = directory, name, series, past
        self._max_to_keep, self._every_s = max_to_keep, every_s
        self._kept = KeptCheckpoints(directory, name)
        # Spans of time go on from where an earlier start of the program was.
        self._preserved_at = max(self._kept.entries().values(), default=time.time())
        self.known: dict[Path, Identity | None] = {}
        self._damaged: dict[Path, Identity | None] = {}

    def note_whole(self, path: Path) -> None:
        """Notes that a checkpoint is whole."""
        self.known[path] = identity_of(path)

    def note_damaged(self, path: Path) -> None:
        """Notes that a checkpoint is damaged: it does not count among those that stay."""
        self._damaged[path] = identity_of(path)

    def settle(self, saved: Path) -> None:
        """Notes that a checkpoint is complete, and prunes; a failure to delete does not fail the save."""
        # It may have taken the name of a damaged one.
        self._damaged.pop(saved, None)
        self.note_whole(saved)
        try:
            self._prune(saved)
        except (OSError, CheckpointError) as error:
            # A log that kept the error would keep all that its traceback knows.
            problem = f"{type(error).__name__}: {error}"
            _LOG.warning("%s is saved. What is older stays until the next save, as %s", saved, problem)

    def _prune(self, saved: Path) -> None:
        """Deletes what is too old or was never completed; the first worker does it, after each save."""
        # A damaged checkpoint does not count, else too few that can be restored would stay; nor does the new one here,
        # which is never deleted: `1 - max_to_keep` below makes up for it.
        others = [entry for entry in self._series.entries() if entry.complete and self._counts(entry, saved)]
        kept = self._kept.entries()
        for entry in others[: 1 - self._max_to_keep or None] if self._max_to_keep is not None else []:
            if entry.number in kept or self._begins_span(entry):
                kept.setdefault(entry.number, self._preserved_at)
                continue
            # A name that no complete checkpoint has, in case that this is where the program ends.
            gone = Path(f"{entry.path}{UNFINISHED}")
            remove(gone)
            standing(entry.path).rename(gone)
        if kept:
            self._kept.write(kept)
        for left in left_over(self._directory, self._name):
            remove(left)

    def _counts(self, entry: Entry, saved: Path) -> bool:
        """True if a checkpoint is one of those of which the last stay."""
        if entry.path in (saved, self._past.begun):
            return False
        return entry.path not in self._damaged or self._damaged[entry.path] != identity_of(entry.path)

    def _begins_span(self, entry: Entry) -> bool:
        """True if a checkpoint is the first one of a span of time, and stays."""
        if self._every_s is None or not entry.described:  # damaged: nobody can use it
            return False
        passed_s = entry.written_at - self._preserved_at
        if 0 <= passed_s < self._every_s:
            return False
        # From its own time on, not from now: spans do not drift with the time that saving takes. A clock that was set
        # back starts again: else nothing would be kept until it comes to the old time.
        self._preserved_at = entry.written_at
        return passed_s >= 0
