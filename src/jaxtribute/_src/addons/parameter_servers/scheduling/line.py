"""`Line`: a worker's connection to the coordinator, which may break and be made again."""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict, deque
from typing import Any

from jaxtribute._src.addons.messaging.transport import Endpoint, Keys, Link
from jaxtribute._src.addons.messaging.wire import Frames, Header, pack, unpack
from jaxtribute._src.addons.parameter_servers.scheduling.closures import AHEAD

_HERE_S = 1.0


class Line:
    """Messages from the coordinator in their order, and answers to it.

    Args:
      index: the worker's number.
      coordinator: where the coordinator is called.
      keys: the cluster's keys.

    Attributes:
      inbox: messages that have come, and were not handled yet.
      process: this process's name, by which the coordinator knows it if its connection is made again.
      attempt: the number of the closure that runs, and of how many times it was handed out.
    """

    def __init__(self, index: int, coordinator: Endpoint, keys: Keys | None) -> None:
        self._index, self._coordinator, self._keys = index, coordinator, keys
        self.inbox: deque[tuple[Header, list[Any]]] = deque()
        self.process = uuid.uuid4().hex
        self.attempt: tuple[int, int] = (0, 0)
        self._replies: OrderedDict[tuple[int, int], Frames] = OrderedDict()
        """Last answers, which a broken connection may have lost; by `attempt`."""
        self._here_at = 0.0

    def open(self) -> None:
        """Connects."""
        self._link = Link(self._coordinator, self._keys)

    def close(self) -> None:
        """Ends the connection."""
        self._link.close()

    def answer(self, frames: Frames) -> None:
        """Sends the answer to the closure that ran, and keeps it in case that the connection loses it."""
        if not self._link.local:
            self._replies[self.attempt] = frames
            # As many as may wait here at a time: answers before those have been taken.
            if len(self._replies) > AHEAD:
                self._replies.popitem(last=False)
        self._link.send(frames)

    def next(self, timeout_s: float) -> tuple[Header, list[Any]] | None:
        """The next message; None if none has come in so many seconds."""
        return self.inbox.popleft() if self.inbox else self.receive(timeout_s)

    def drain(self) -> None:
        """Takes what has come meanwhile."""
        while (message := self.receive(0)) is not None:
            self.inbox.append(message)

    def receive(self, timeout_s: float) -> tuple[Header, list[Any]] | None:
        """The next message; None if there is none, or only a closure that is known, sent once more."""
        frames = self._link.receive(timeout_s)
        if frames is None:
            return None
        header, arrays = unpack(frames)
        if header["t"] == "run":
            attempt = attempt_of(header)
            # The answer was lost with a connection: it is given again, and the function does not run again.
            if attempt in self._replies:
                self._link.send(self._replies[attempt])
                return None
            # Sent once more to a connection that was made again, while this worker has it already.
            if attempt == self.attempt or any(attempt_of(other) == attempt for other, _ in self.inbox):
                return None
        return header, arrays

    def say(self, what: str, **more: object) -> None:
        """Sends a message without arrays.

        Args:
          what: its kind.
          more: its other keys.
        """
        self._link.send(pack({"t": what, "w": self._index, "p": self.process, **more}))

    def say_here(self) -> None:
        """Lets the coordinator know now and then where this worker is: its connection may be another one."""
        if not self._link.local and time.monotonic() - self._here_at > _HERE_S:
            self._here_at = time.monotonic()
            self.say("here")


def attempt_of(header: Header) -> tuple[int, int]:
    """The number of the closure in a message, and of how many times it was handed out; zeros if there is none."""
    return (header["c"], header["n"]) if header["t"] == "run" else (0, 0)
