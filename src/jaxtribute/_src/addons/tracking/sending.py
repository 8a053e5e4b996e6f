"""A thread between the training and a tracker, so that a slow or dead one holds nobody up."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxtribute._src.addons.tracking.protocol import Tracker

if TYPE_CHECKING:
    from jaxtribute.typing import Foreign

_LOG = logging.getLogger(__name__)
_MOST_WAITING = 10_000
_MOST_ERRORS = 20


class Sender:
    """Calls a tracker's methods in a thread.

    Args:
      name: the tracker's, for messages.
      make: makes the tracker; called in the thread, as it may ask a server.
      patience_s: seconds that the tracker may take for what is left at a flush or the end.
    """

    def __init__(self, name: str, make: Callable[[], Tracker], patience_s: float = 30.0) -> None:
        self._name, self._make, self._patience_s = name, make, patience_s
        # Bounded: a server that is down must not fill the memory of the training.
        self._calls: queue.Queue[tuple[str, tuple[Foreign, ...]]] = queue.Queue(_MOST_WAITING)
        self._lost = self._errors = 0
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=f"jaxtribute-track-{name}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def send(self, method: str, *arguments: Foreign) -> None:
        """Lets a method be called some time; never waits, and where too much waits already nothing is called."""
        try:
            self._calls.put_nowait((method, arguments))
        except queue.Full:
            self._lost += 1
            if self._lost == 1:
                _LOG.warning("%s takes figures too slowly: some are lost. HINT: write fewer of them.", self._name)

    def flush(self) -> None:
        """Waits until the tracker has taken everything, within its patience."""
        flushed = threading.Event()
        self.send("flush", flushed)
        if not flushed.wait(self._patience_s):
            _LOG.warning("%s has not taken all figures within %g s.", self._name, self._patience_s)

    def close(self) -> None:
        """Ends the tracking, within the tracker's patience."""
        atexit.unregister(self.close)
        deadline = time.monotonic() + self._patience_s
        try:
            self._calls.put(("close", ()), timeout=self._patience_s)
        except queue.Full:
            # Nothing has been taken for so long that the rest is given up.
            deadline, self._abandoned = 0.0, True
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            _LOG.warning(
                "%s has not ended within %g s, and its last figures may be lost. HINT: see whether its server answers.",
                self._name,
                self._patience_s,
            )

    def _run(self) -> None:
        tracker: Tracker | None = None
        method = ""
        while method != "close" and not self._abandoned:
            method, arguments = self._calls.get()
            flushed = arguments[0] if method == "flush" else None
            # What has failed so often would fail on, and each call may wait for a server.
            if self._errors < _MOST_ERRORS:
                try:
                    # Made again after a failure: its server may answer later.
                    tracker = tracker or self._make()
                    getattr(tracker, method)(*(() if flushed else arguments))
                except Exception as error:  # noqa: BLE001  # a tracker may raise anything, and the training goes on
                    self._note(error)
            # After an error, too: somebody waits for it.
            if flushed is not None:
                flushed.set()

    def _note(self, error: Exception) -> None:
        self._errors += 1
        # A line for each call would hide what the training prints.
        if self._errors in (1, _MOST_ERRORS):
            _LOG.warning(
                "%s failed%s: %s: %s. HINT: the training goes on without these figures.",
                self._name,
                "" if self._errors == 1 else f" {self._errors} times and is asked no more",
                type(error).__name__,
                error,
            )
