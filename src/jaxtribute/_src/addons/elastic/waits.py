"""`Waits`: for whom an island waits, so that one that holds all others up is named while they still train."""

from __future__ import annotations

import logging
import time

from jaxtribute._src.addons.elastic.membership import Island

_LOG = logging.getLogger(__name__)
_EVERY_S = 10.0
"""Seconds between two looks."""
_SHARE = 0.5
"""The part of an island's time that it spends waiting for another one, from which on it says so."""


class Waits:
    """Seconds that this island has waited for others, by which of them was the last to come.

    Args:
      me: this island.
    """

    def __init__(self, me: Island) -> None:
        self._me = me
        self._since = time.monotonic()
        self._waited: dict[Island, float] = {}

    def note(self, last: Island, seconds: float) -> None:
        """Takes note of a wait; from time to time says for whom, if that takes most of the time."""
        self._waited[last] = self._waited.get(last, 0.0) + seconds
        now = time.monotonic()
        passed = now - self._since
        if passed < _EVERY_S:
            return
        slowest = max(self._waited, key=lambda island: self._waited[island])
        waited = self._waited[slowest]
        self._since, self._waited = now, {}
        if waited > _SHARE * passed:
            _LOG.warning(
                "island %d has waited %.1f s of the last %.1f s for island %d, which is slower than the others. HINT: "
                "look at what else its machine does; all islands take as long as the slowest.",
                self._me.rank,
                waited,
                passed,
                slowest.rank,
            )
