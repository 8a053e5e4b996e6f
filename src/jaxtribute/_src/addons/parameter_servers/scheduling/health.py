"""`Health`: which parameter servers are lost, and what has ended the work of all."""

from __future__ import annotations

import threading

from jaxtribute._src.addons.parameter_servers.server.client import ServerLostError
from jaxtribute.errors import ClusterError

LOST = (
    "parameter server {} has ended, and what it held is gone. HINT: coordinator.restore() goes on from the last "
    "coordinator.save(); ParameterServerStrategy(replicas=1) keeps a mirror of each server."
)
"""Message on servers that are lost, without a mirror."""


class Health:
    """State of the servers, which several threads change and wait for.

    Attributes:
      lost: the servers that have ended and are not back.
      failure: what ended the work of all; None if nothing did.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.lost: set[int] = set()
        self.failure: ClusterError | None = None

    def lose(self, server: int) -> None:
        """Notes that a server has ended."""
        with self._changed:
            self.lost.add(server)

    def regain(self, server: int) -> None:
        """Notes that a server is back, with what it held."""
        with self._changed:
            self.lost.discard(server)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Waits until all servers are back; False if they are not after so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.lost, seconds)

    def check(self) -> None:
        """Raises an error if a server that is asked cannot answer."""
        if self.failure is not None:
            raise ServerLostError(str(self.failure))
        if self.lost:
            raise ServerLostError(LOST.format(", ".join(map(str, sorted(self.lost)))))
