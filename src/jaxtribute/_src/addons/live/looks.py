"""Looks at the thread that trains: their pace, the place that they find it in, and the seconds that they divide.

How long Python was in a place is known exactly: events begin and end there. Whether the devices computed meanwhile, or
JAX compiled, only looks tell. So looks divide the time of each place, and no more: how many of them fell into a place,
which chance and a busy machine decide, does not matter.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Mapping, Sequence

from jaxtribute.extending import Kinds

PLACES = {
    Kinds.RESTORE.name: 0,
    Kinds.SAVE.name: 1,
    Kinds.FLUSH.name: 2,
    Kinds.WAIT.name: 3,
    Kinds.INPUT.name: 4,
    Kinds.DISPATCH.name: 5,
    Kinds.CLOSURE.name: 5,
}
"""The place of each kind of event; of events in each other, the one of the lowest number counts."""
STEP, OUTSIDE = 5, 6
PARTS = ("recovery", "save", "save", "collective", "input", "step", "other")
"""The part of the time that a place belongs to while the devices are idle."""

_OFTEN_S, _SELDOM_S = 0.1, 0.4
_MIXED_S = 0.02
"""A worker whose steps alternate with something else for seconds is to be known to a few percent: a step of 50 ms is
then seen twice."""
_CALM = 5

Seen = Mapping[tuple[int, str], float]
"""Seconds that looks stand for, by place and part."""


class Places:
    """The place that a thread is in, and its seconds in each until now.

    One thread calls `go`, another one the rest, and neither waits for the other. Seconds that are just being moved may
    be missed, or be counted twice, until the next look.

    Args:
      now: the moment of the beginning, in seconds of `time.monotonic`.

    Attributes:
      place: the place, a number.
    """

    def __init__(self, now: float) -> None:
        self.place = OUTSIDE
        self._since = now
        self._spent = [0.0] * len(PARTS)
        self._looks = (now, now)
        self._totals = self._spent[:], self._spent[:]

    def go(self, place: int, now: float) -> None:
        """Goes to another place."""
        self._spent[self.place] += now - self._since
        self.place, self._since = place, now

    def look(self, now: float) -> None:
        """Notes the seconds until now."""
        spent = self._spent[:]
        spent[self.place] += now - self._since
        self._looks, self._totals = (self._looks[1], now), (self._totals[1], spent)

    def at(self, moment: float) -> list[float]:
        """Seconds in each place until a moment between the last two looks, over which they are spread evenly."""
        (first, last), (before, after) = self._looks, self._totals
        share = min(max((moment - first) / (last - first), 0.0), 1.0) if last > first else 1.0
        return [one + share * (other - one) for one, other in zip(before, after, strict=True)]


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


def divided(seen: Seen, before: Sequence[float], after: Sequence[float]) -> dict[str, float]:
    """Seconds of each part of a time.

    Args:
      seen: what looks in this time say.
      before: seconds in each place until its beginning.
      after: likewise, until its end.
    """
    covered = sum(seen.values())
    exact = [max(0.0, last - first) for first, last in zip(before, after, strict=True)]
    scale = covered / (sum(exact) or 1.0)
    computing = sum(seconds for (_, part), seconds in seen.items() if part == "step")
    found: dict[str, float] = {}
    for place, seconds in enumerate(exact):
        here = {part: looked for (where, part), looked in seen.items() if where == place}
        if not here:  # no look has fallen into that place: the devices may have computed as they did in others
            here = {PARTS[place]: covered - computing}
            here["step"] = here.get("step", 0.0) + computing
        looked = sum(here.values())
        for part, share in here.items():
            if looked > 0 and seconds > 0:
                found[part] = found.get(part, 0.0) + scale * seconds * share / looked
    return found if found else {part: seconds for (_, part), seconds in seen.items()}
