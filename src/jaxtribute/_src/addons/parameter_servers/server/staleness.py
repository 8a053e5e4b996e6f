"""Staleness of what a client computes with: changes by others that its values lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from jaxtribute.typing import Json

OPTIMIZER = "optimizer"


class Staleness:
    """Counts, at each pull, the changes by others since the pull before; of the shards pulled the stalest one counts.

    So far a client has computed with values that lacked these changes. Versions tell: a server adds 1 for each change.

    Attributes:
      pulls: pulls of what had been pulled before.
      total: changes by others, over all of these pulls.
      last: those of the last pull.
      most: those of the stalest pull.
    """

    pulls: int
    total: int
    last: int
    most: int

    def __init__(self) -> None:
        self.pulls = self.total = self.last = self.most = 0
        self._direct: Counter[int] = Counter()
        """This client's own changes of each shard since it pulled that."""
        self._steps: Counter[int] = Counter()
        """Steps of optimizers that this client has had each server do."""
        self._steps_at_pull: dict[int, int] = {}

    def changed(self, server: int, operations: Iterable[Sequence[Any]]) -> None:
        """Notes operations, `[kind, key or id, ...]`, that this client sends to a server."""
        for operation in operations:
            if operation[0] == OPTIMIZER:
                # A step changes all of the optimizer's shards there, none of which the operation names.
                self._steps[server] += 1
            else:
                self._direct[operation[1]] += 1

    def pulled(self, server: int, versions: Iterable[tuple[int, int, int]]) -> int:
        """Returns the changes by others to the stalest of some shards.

        Args:
          server: the server that has told the versions.
          versions: for each shard its key, the version that this client had (0 for none), and the one of now.
        """
        steps, most = self._steps[server], 0
        for key, before, now in versions:
            own = self._direct.pop(key, 0) + steps - self._steps_at_pull.get(key, steps)
            self._steps_at_pull[key] = steps
            # There is nothing that a first pull could be behind of.
            if before:
                most = max(most, now - before - own)
        return most

    def note(self, changes: int) -> None:
        """Notes a pull, of one server or several."""
        self.pulls += 1
        self.total += changes
        self.last = changes
        self.most = max(self.most, changes)

    def figures(self) -> dict[str, Json]:
        """The counts, as values that JSON can hold."""
        return {"pulls": self.pulls, "behind": self.total, "behind_now": self.last, "most_behind": self.most}
