"""The account of a worker's time: what looks have found, divided among the parts of the run, in windows."""

from __future__ import annotations

from collections.abc import Iterator

from jaxtribute._src.addons.live.looks import Places, divided
from jaxtribute._src.addons.live.windows import Window, length_after, wall


class Account:
    """Findings of the looks, by window of time.

    Args:
      places: the seconds of the thread that trains in each place.
      now: the moment of the beginning, in seconds of `time.monotonic`.

    Attributes:
      window: the window that is being filled.
    """

    def __init__(self, places: Places, now: float) -> None:
        self._places = places
        self._windows = 0
        self.window = self._new_window(wall(now), 0)
        self._seen: dict[tuple[int, str], float] = {}
        """Findings of the looks in this window, for the seconds from `_before`, when it began."""
        self._before = places.at(0.0)

    def add(self, finding: tuple[int, str], start: float, stop: float) -> Iterator[Window]:
        """Adds the time from `start` to `stop`, both of `time.monotonic`; yields each window that ends in it.

        Args:
          finding: the place and the part that a look has found.
          start: seconds.
          stop: likewise.
        """
        since, until = wall(start), wall(stop)
        while until >= (edge := self.window.start + self.window.length):
            self._seen[finding] = self._seen.get(finding, 0.0) + max(0.0, edge - since)
            after = self.divide(stop - (until - edge))
            yield self.window
            self._windows += 1
            self.window, self._seen, self._before = self._new_window(edge, self.window.last), {}, after
            since = max(since, edge)
        self._seen[finding] = self._seen.get(finding, 0.0) + until - since

    def divide(self, moment: float) -> list[float]:
        """Divides the window's time until a moment among its parts; returns the seconds in each place until then."""
        after = self._places.at(moment)
        self.window.buckets = divided(self._seen, self._before, after)
        return after

    def _new_window(self, moment: float, steps: int) -> Window:
        length = length_after(self._windows)
        return Window(moment // length * length, length, last=steps)
