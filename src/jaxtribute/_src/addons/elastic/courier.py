"""`Courier`: moves what islands give each other ahead of a step, while the program goes on."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from jaxtribute._src.addons.elastic.packing import Parcel
from jaxtribute._src.addons.elastic.traffic import Head, Traffic
from jaxtribute._src.jax_settings import AsHere

AHEAD = -2
"""The place in a step of what is sent before it."""
_TURN_S = 0.05
_REST_S = 0.005
"""Seconds in which more may come: each time it wakes, it takes Python's lock from the program."""


class Ahead(NamedTuple):
    """Arrays that travel before the step in which they are asked for.

    Attributes:
      head: the view in which they were sent, and the step that was to be the next.
      parcel: this island's.
    """

    head: Head
    parcel: Parcel


class Courier:
    """A thread that sends and receives. Between `start` and `stop` nobody else may use the traffic.

    Args:
      traffic: between this island and the others.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._thread: threading.Thread | None = None
        self._stops = False

    def start(self) -> None:
        """Begins to send and to receive."""
        self.stop()
        self._stops = False
        self._thread = threading.Thread(target=AsHere(self._move), name="islands: courier", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leaves the traffic to the calling thread. What is still on its way stays so."""
        if self._thread is None:
            return
        self._stops = True
        self._traffic.wake()
        self._thread.join()
        self._thread = None

    def end(self) -> None:
        """Lets the thread end, and waits for nobody."""
        self._stops = True

    def _move(self) -> None:
        while not self._stops:
            self._traffic.move(_TURN_S, looks=False)
            time.sleep(_REST_S)
