"""`Presence`: when each island was heard last, and whose connections have ended."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jaxtribute._src.addons.elastic.membership import Island


class Presence:
    """Signs of life of the other islands."""

    def __init__(self) -> None:
        self._heard_at: dict[Island, float] = {}
        self._broken: set[Island] = set()

    def heard(self, island: Island) -> None:
        """Takes note of a sign of life; of data, that may have been under way for long."""
        self._heard_at[island] = time.monotonic()

    def found(self, island: Island) -> None:
        """Takes note that a process answers."""
        self.heard(island)
        self._broken.discard(island)

    def lose(self, island: Island) -> None:
        """Takes note that a connection has ended, for whatever reason."""
        self._broken.add(island)

    def silent(self, members: Sequence[Island], now: float, limit_s: float) -> list[Island]:
        """Those that have said nothing for too long; of whom nothing was heard yet, the time begins now."""
        return [member for member in members if now - self._heard_at.setdefault(member, now) > limit_s]

    def broken(self, members: Sequence[Island]) -> list[Island]:
        """Those to whom a connection has ended."""
        return [member for member in members if member in self._broken]

    def end(self, island: Island) -> None:
        """Forgets a connection that has ended: it is known what it means."""
        self._broken.discard(island)
