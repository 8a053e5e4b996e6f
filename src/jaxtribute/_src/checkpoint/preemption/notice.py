"""Learns that some worker is about to be taken away: by SIGTERM, by the user's function, or from another worker."""

from __future__ import annotations

import atexit
import json
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from jaxtribute.errors import ClusterError, ContextError

if TYPE_CHECKING:
    from jaxtribute._src.cluster.runtime import Cluster

KEY = "jaxtribute/preemption/notice"
_LOOK_S = 0.1
_ASK_S = 1.0


def read(cluster: Cluster) -> tuple[int, str] | None:
    """The notice that the workers know of: the worker that is to go, and why; None without one."""
    text = cluster.try_get(KEY)
    return None if text is None else tuple(json.loads(text))


class Notice:
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
        self._told.set()  # nothing else: it may come in the midst of anything

    def _listen(self) -> None:
        asked = 0.0
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
        known = read(self._cluster)
        if known is None and told:
            known = self._cluster.rank, self._why
            self._cluster.set(KEY, json.dumps(known))
        return None if known is None else f"{self._cluster.names[known[0]]} {known[1]}"
