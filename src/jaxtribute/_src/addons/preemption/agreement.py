"""Workers learn that a machine is about to be taken away, and agree on the step at which all of them save."""

from __future__ import annotations

import atexit
import json
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from jaxtribute.errors import ClusterError, ContextError, DeadlineError

if TYPE_CHECKING:
    from jaxtribute.extending import Cluster

KEY = "jaxtribute/preemption/notice"
_LOOK_S = 0.1
_ASK_S = 1.0


def read_notice(cluster: Cluster) -> tuple[int, str] | None:
    """The notice that the workers know of: the worker that is to go, and why; None without one."""
    text = cluster.try_get(KEY)
    return None if text is None else tuple(json.loads(text))


class NoticeListener:
    """Listens for the first notice on any worker.

    Args:
      cluster: the workers; None for a single process.
      watcher: asked every second whether this machine is about to be taken away.
      heard: called once, in a thread, when the first notice has come; its argument says of whom and why.

    Raises:
      ContextError: not made in the main thread, which alone gets signals.
    """

    def __init__(
        self, cluster: Cluster | None, watcher: Callable[[], bool] | None, heard: Callable[[str], None]
    ) -> None:
        self._cluster, self._watcher, self._heard = cluster, watcher, heard
        self._told = threading.Event()
        self._why = "got SIGTERM"
        self._closed = threading.Event()
        try:
            self._before: Any = signal.signal(signal.SIGTERM, self._on_signal)
        except ValueError:
            raise ContextError(
                f"SIGTERM cannot be listened for in the thread {threading.current_thread().name!r}. "
                "HINT: make the handler in the main thread."
            ) from None
        self._thread = threading.Thread(target=self._listen, name="jaxtribute-preemption", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Listens no more, and gives SIGTERM back its former meaning. Again is harmless."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._told.set()
        self._thread.join()
        atexit.unregister(self.close)
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._told.set()  # nothing else: it may come in the middle of anything

    def _listen(self) -> None:
        asked = 0.0
        # Alone and without a function to ask, only the signal can come, and that wakes the thread.
        pause = _LOOK_S if self._cluster is not None else _ASK_S if self._watcher is not None else None
        while True:
            told = self._told.wait(pause)
            if self._closed.is_set():
                return
            if not told and self._watcher is not None and time.monotonic() - asked >= _ASK_S:
                asked = time.monotonic()
                if self._watcher():
                    self._why, told = "is about to be taken away", True
            try:
                whom = self._spread(told)
            except (RuntimeError, ClusterError):
                return  # the cluster has failed, and with it all of this
            if whom is not None:
                self._heard(whom)
                return

    def _spread(self, told: bool) -> str | None:
        """Tells the others, or learns from them; returns what is known."""
        if self._cluster is None:
            return f"this process {self._why}" if told else None
        known = read_notice(self._cluster)
        # The first notice counts: of several that go at once, all must name the same.
        if known is None and told:
            known = self._cluster.rank, self._why
            self._cluster.set(KEY, json.dumps(known))
        return None if known is None else f"{self._cluster.names[known[0]]} {known[1]}"


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
        # One step with what `due` does: the program must not pass the place that is being published as its next.
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
        timeout_s = cluster.patience()
        deadline = time.monotonic() + timeout_s
        while True:
            places = cluster.by_rank(_ROOT)
            missing = [rank for rank in range(cluster.workers) if rank not in places]
            if not missing:
                # The furthest: those behind it can still come there, and nobody can go back.
                return max(map(int, places.values()))
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
