"""Signals to ranks that are to end: first one that lets them save, in the end one that nobody can ignore."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from types import MappingProxyType

from jaxtribute._src.addons.launcher.family import Family
from jaxtribute.extending import ExitCode

Signal = signal.Signals


NOT_HEARD = (-Signal.SIGTERM, 128 + Signal.SIGTERM)
"""Ends of a process that does not listen for SIGTERM; the second is that of a shell around it."""
ABORTED = (-Signal.SIGABRT, 128 + Signal.SIGABRT)
"""Ends of a process that JAX aborts, as the coordinator, rank 0, has gone before it."""
_BY_SIGTERM = (0, *NOT_HEARD, -Signal.SIGKILL, 128 + Signal.SIGKILL, ExitCode.ELSEWHERE)
"""Ends that SIGTERM brings about, in a process itself or in others that it has met."""


def stopped_code(asked: Signal, ends: Mapping[int, int] = MappingProxyType({})) -> int:
    """Exit code of a job that a signal has ended before it had saved.

    After SIGTERM that is the one which asks for another start: whoever takes the machine away gives another one.

    Args:
      asked: the signal.
      ends: return codes by rank: one that answers SIGTERM with an error of its own asks for nothing.
    """
    again = all(code in _BY_SIGTERM or (rank > 0 and code in ABORTED) for rank, code in ends.items())
    return int(ExitCode.RESUME) if asked is Signal.SIGTERM and again else 128 + asked


class Escalation:
    """Signals that are still to be sent to ranks, and those that were.

    Args:
      grace_s: seconds between SIGTERM and SIGKILL.
      save_s: seconds that preempted ranks have to save.

    Attributes:
      asked: the last signal that somebody has sent to the launcher.
      sent: signals that the launcher has sent, to tell them from those of others.
      changed: set when other signals are due than before.
    """

    def __init__(self, grace_s: float, save_s: float) -> None:
        self._grace_s, self._save_s = grace_s, save_s
        self._due: list[tuple[float, Signal]] = []
        self.asked: Signal | None = None
        self.sent: set[Signal] = set()
        self.changed = asyncio.Event()

    @property
    def is_due(self) -> bool:
        """True if a signal is still to be sent."""
        return bool(self._due)

    @property
    def wait_s(self) -> float | None:
        """Seconds until the next signal is due; None if none is."""
        return max(self._due[0][0] - time.monotonic(), 0) if self._due else None

    def stop(self, after_s: float = 0.0) -> None:
        """Ends the ranks after a moment."""
        self._plan((after_s, Signal.SIGTERM), (after_s + self._grace_s, Signal.SIGKILL))

    def save(self) -> None:
        """Gives the ranks the time that saving takes, and ends them then."""
        self.stop(self._save_s)

    def forward(self, number: Signal) -> None:
        """Hands a signal on. Ctrl-C ends the ranks soon, and at once the second time; SIGTERM lets them save."""
        again = self.asked is Signal.SIGINT and number is Signal.SIGINT
        self.asked = number
        # Whoever presses Ctrl-C twice does not want to wait for anything.
        if again:
            self._plan((0.0, Signal.SIGKILL))
        elif number is Signal.SIGINT:
            grace = self._grace_s
            self._plan((0.0, number), (grace, Signal.SIGTERM), (2 * grace, Signal.SIGKILL))
        else:
            self._plan((0.0, number), (self._save_s, Signal.SIGKILL))

    def send_due(self, family: Family) -> None:
        """Sends what is due."""
        while self._due and self._due[0][0] <= time.monotonic():
            _, number = self._due.pop(0)
            self.sent.add(number)
            family.signal(number)

    def _plan(self, *steps: tuple[float, Signal]) -> None:
        now = time.monotonic()
        # What was due before is not any more: the last decision holds.
        self._due = [(now + delay, number) for delay, number in steps]
        self.changed.set()
