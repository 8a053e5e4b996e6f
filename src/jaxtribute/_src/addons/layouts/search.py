"""The search for the best plan: guesses first, then changes of the best one, each judged by the compiler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from operator import attrgetter

from jaxtribute._src.addons.layouts.automatic import Candidate
from jaxtribute._src.addons.layouts.clusters import Cluster, Plan, guesses

_LOG = logging.getLogger(__name__)
_ROOM = 1.25
"""A program may need so much more memory than the most frugal guess, if no limit is given."""

Judged = Callable[[str, Plan], Candidate]


class Search:
    """Finds the plan that fits and moves the fewest bytes.

    Args:
      clusters: what is laid out.
      judge: compiles a plan.
      limit: bytes on each device that there are; None if the most frugal guess tells.
      device: bytes that a device has; None if it does not say.
      tries: the most plans that are compiled.
    """

    def __init__(
        self, clusters: Sequence[Cluster], judge: Judged, limit: int | None, device: int | None, tries: int
    ) -> None:
        self._clusters, self._judge, self._tries = clusters, judge, tries
        self._limit, self._device = limit, device
        self.limit = float("inf")
        """Bytes that a plan may need to fit, once a search has begun."""
        self.tried: dict[Plan, Candidate] = {}

    def best(self, now: Plan) -> Plan:
        """The best plan that is found; `now` is how the variables lie."""
        for name, plan in guesses(self._clusters, now).items():
            self._try(name, plan)
        least = min(map(attrgetter("memory"), self.tried.values()))
        limit = least * _ROOM if self._limit is None else self._limit
        if self._limit is None and self._device is not None:
            limit = min(limit, self._device)
        self.limit = limit

        def rank(plan: Plan) -> tuple[float, ...]:
            tried = self.tried[plan]
            if tried.memory > limit:
                return 1, tried.memory, tried.sent
            # Of plans that move as much, the one that needs less memory; then the one that was tried first.
            return 0, tried.sent, tried.memory

        best = min(self.tried, key=rank)
        improved = True
        while improved and len(self.tried) < self._tries:
            improved = False
            for plan in self._changes(best):
                # The first that is better, not the best of all: each try is a compilation.
                if self._try("a change", plan) and rank(plan) < rank(best):
                    best, improved = plan, True
                    break
        _LOG.debug("%d plans compiled, %s is best", len(self.tried), self.tried[best])
        return best

    def _try(self, name: str, plan: Plan) -> bool:
        """Compiles a plan, if there is a try left; True if it was not known."""
        if plan in self.tried or len(self.tried) >= self._tries:
            return False
        self.tried[plan] = self._judge(name, plan)
        return True

    def _changes(self, plan: Plan) -> Generator[Plan]:
        """Plans that differ in clusters that are alike, the largest first, and then in one of these alone."""
        # Layers that repeat are mostly best laid out alike, and changed together they take one try.
        alike: dict[object, list[int]] = {}
        for place, cluster in enumerate(self._clusters):
            alike.setdefault((cluster.likeness, plan[place]), []).append(place)
        groups = sorted(alike.values(), key=lambda places: -sum(self._clusters[one].nbytes for one in places))
        changes = list(groups)
        for places in groups:
            if len(places) > 1:
                changes += [[place] for place in places]
        for places in changes:
            for axis in (*self._clusters[places[0]].splits, None):
                # With its class first: an axis that is split alone mostly makes the program communicate.
                for follow in (True, False):
                    changed = self._changed(plan, places, axis, follow=follow)
                    if changed != plan:
                        yield changed

    def _changed(self, plan: Plan, places: Sequence[int], axis: int | None, *, follow: bool) -> Plan:
        """The plan with some clusters split at another axis, alone or with all that share the class."""
        changed = list(plan)
        for place in places:
            before, changed[place] = changed[place], axis
            if not follow:
                continue
            cluster = self._clusters[place]
            joins = None if axis is None else cluster.axes[axis]
            leaves = None if before is None else cluster.axes[before]
            for other, one in enumerate(self._clusters):
                if other in places:
                    continue
                own = changed[other]
                if joins is not None and joins in one.axes and one.axes.index(joins) in one.splits:
                    changed[other] = one.axes.index(joins)
                elif leaves is not None and own is not None and one.axes[own] == leaves:
                    changed[other] = None
        return tuple(changed)
