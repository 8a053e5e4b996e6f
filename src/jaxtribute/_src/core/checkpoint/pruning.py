"""`Pruning`: which checkpoints of a folder stay, and the deletion of all others."""

from __future__ import annotations

import time
from pathlib import Path

from jaxtribute._src.core.checkpoint.files import UNFINISHED, left_over, remove, standing
from jaxtribute._src.core.checkpoint.folder import KeptCheckpoints
from jaxtribute._src.core.checkpoint.series import Entry, Identity, Series, identity_of


class Pruning:
    """Deletes checkpoints that are too old.

    Args:
      directory: the folder.
      name: what the names of its checkpoints start with.
      series: the checkpoints there.
      max_to_keep: how many of the last ones stay; None for all.
      every_s: in addition, one for each such span of time; None for no other.
    """

    def __init__(
        self, directory: Path, name: str, series: Series, max_to_keep: int | None, every_s: float | None
    ) -> None:
        self._directory, self._name, self._series = directory, name, series
        self._max_to_keep, self._every_s = max_to_keep, every_s
        self._kept = KeptCheckpoints(directory, name)
        # Spans of time go on from where an earlier start of the program was.
        self._preserved_at = max(self._kept.entries().values(), default=time.time())
        self._damaged: dict[Path, Identity | None] = {}

    def leave_out(self, path: Path) -> None:
        """Does not count a checkpoint, which is damaged, among those that stay: else too few could be restored."""
        self._damaged[path] = identity_of(path)

    def prune(self, saved: Path) -> None:
        """Deletes what is too old or was never completed; the first worker does it, after each save.

        Args:
          saved: the new checkpoint, which is never deleted.
        """
        self._damaged.pop(saved, None)  # it may have taken the name of a damaged one
        # The new one is not among the others: `1 - max_to_keep` makes up for it.
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
        if entry.path == saved:
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
        # back begins anew: else nothing would stay until it comes to the old time.
        self._preserved_at = entry.written_at
        return passed_s >= 0
