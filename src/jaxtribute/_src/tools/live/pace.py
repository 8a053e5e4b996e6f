"""The pace at which a thread looks: seldom while the devices compute all the time, most often where parts alternate."""

from __future__ import annotations

import os
import random
from collections import deque

_OFTEN_S, _SELDOM_S = 0.1, 0.4
_MIXED_S = 0.02
"""A worker whose steps alternate with something else for seconds is to be known to a few percent: a step of 50 ms is
then seen twice."""
_CALM = 5


class Pace:
    """Pauses between looks.

    A look changes the pause after the next one, not its own. For it stands for half of the time on each side, which
    must not depend on what it finds, or short waits were seen too little of.
    """

    def __init__(self) -> None:
        # Regular looks would see one part of each of many equal steps.
        self._random = random.Random(os.getpid())
        self._last: deque[str] = deque(maxlen=_CALM)
        self._pause = self._next = _OFTEN_S

    def pause_s(self) -> float:
        """Seconds until the next look."""
        return self._pause * (0.5 + self._random.random())

    def saw(self, bucket: str) -> None:
        """Notes the part of the time that a look has found."""
        self._pause = self._next
        self._last.append(bucket)
        if len(set(self._last)) > 1:
            self._next = _MIXED_S
        else:
            calm = bucket == "step" and len(self._last) == _CALM
            self._next = _SELDOM_S if calm else _OFTEN_S
