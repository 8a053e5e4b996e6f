"""Workers agree on the step at which all of them save, though each learns of the preemption at another moment."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from jaxtribute._src.checkpoint.committing import patience
from jaxtribute.errors import DeadlineError

if TYPE_CHECKING:
    from jaxtribute._src.cluster.runtime import Cluster

_ROOT = "jaxtribute/preemption/round"
_POLL_S = 0.002


class Rounds:
    """Counts the places of a program at which it can save, and says at which one it does.

    Every worker passes the same places in the same order. One that has learned of the preemption publishes the next
    place that it comes to, from a thread, whatever its program does meanwhile; the furthest of all is where they save.
    At its next place a worker waits until all have published, so none gets past that one. No worker has to wait for
    the step of another there: it has handed all steps before the place to the devices.

    Args:
      cluster: the workers; None for a single process.
    """

    def __init__(self, cluster: Cluster | None) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._next = 0
        self._learned = False
        self._target: int | None = None
        self._over = False

    def learn(self) -> None:
        """Publishes where this worker is. Called once, in another thread."""
        with self._lock:
            self._learned, place = True, self._next
        if self._cluster is not None:
            self._cluster.set(f"{_ROOT}/{self._cluster.rank}", str(place))

    def due(self) -> bool:
        """Passes a place; returns whether it is the one at which all save.

        Raises:
          DeadlineError: a worker has not said where it is; it is named.
          ClusterError: a worker failed.
        """
        with self._lock:
            place, learned = self._next, self._learned
            self._next += 1
        if not learned or self._over:
            return False
        if self._target is None:
            self._target = self._agreed(place)
        return place == self._target

    def postpone(self, places: int) -> None:
        """Lets all save once more, so many places later; they have agreed on it by other means."""
        self._target = None if self._target is None else self._target + places

    def finish(self) -> None:
        """There is nothing to save any more."""
        self._over = True

    def _agreed(self, place: int) -> int:
        cluster = self._cluster
        if cluster is None:
            return place
        timeout_s = patience(cluster)
        deadline = time.monotonic() + timeout_s
        while True:
            places = {int(key.rpartition("/")[2]): int(value) for key, value in cluster.list(f"{_ROOT}/").items()}
            missing = [rank for rank in range(cluster.workers) if rank not in places]
            if not missing:
                return max(places.values())
            if all(rank in cluster.watch.left for rank in missing):
                # They have passed their last place and ended: what they did last is what counts, with no save.
                self._over = True
                return -1
            cluster.check()
            if time.monotonic() > deadline:
                absent = cluster.roster.named(missing)
                raise DeadlineError(
                    f"{cluster.names[cluster.rank]} waited {timeout_s:g} s for {absent}, to agree on the step to save "
                    "at. HINT: make the PreemptionCheckpointHandler on every worker."
                )
            time.sleep(_POLL_S)
