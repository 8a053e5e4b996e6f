"""The pace at which a thread looks: seldom while the devices compute all the time, else often."""

from __future__ import annotations

import os
import random

_OFTEN_S, _SELDOM_S = 0.1, 0.4
_CALM = 5


class Pace:
    """Pauses between looks.

    A look changes the pause after the next one, not its own. For it stands for half of the time on each side, which
    must not depend on what it finds, or short waits were seen too little of.
    """

    def __init__(self) -> None:
        # Regular looks would see one part of each of many equal steps.
        self._random = random.Random(os.getpid())
        self._steps = 0
        self._seldom = self._seldom_next = False

    def pause_s(self) -> float:
        """Seconds until the next look."""
        return (_SELDOM_S if self._seldom else _OFTEN_S) * (0.5 + self._random.random())

    def saw(self, bucket: str) -> None:
        """Notes the part of the time that a look has found."""
        self._seldom = self._seldom_next
        self._steps = self._steps + 1 if bucket == "step" else 0
        self._seldom_next = self._steps >= _CALM
