"""Waiting for workers with a deadline, on a clock that stands still while this process does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from jaxtribute._src.core.cluster.failures import say
from jaxtribute._src.core.cluster.roster import Roster
from jaxtribute._src.core.observers import WAIT, Event
from jaxtribute.errors import DeadlineError

_SPEAK_EVERY_S = 10.0
_POLL_S = 0.05
_STOPPED_S = 5.0


class RunningClock:
    """A clock that stands still while this process does: stopped by a signal, or on a machine that sleeps.

    It can tell only where somebody looks at it often. Between two looks that are further apart than that, the process
    has not run.

    Args:
      most_s: seconds between two looks at most.
    """

    def __init__(self, most_s: float = _STOPPED_S) -> None:
        self._most_s = most_s
        self._lock = threading.Lock()
        self._seen = time.monotonic()
        self.stopped_s: float = 0.0
        """Seconds for which the process has not run."""

    def now(self) -> float:
        """Seconds of `time.monotonic`, less those for which the process has not run."""
        with self._lock:
            now = time.monotonic()
            if now - self._seen > self._most_s:
                # As if no time had passed since the last look.
                self.stopped_s += now - self._seen
            self._seen = now
            return now - self.stopped_s


def await_workers(
    roster: Roster,
    absent: Callable[[], Sequence[int]],
    where: str,
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
    whereabouts: Callable[[Sequence[int]], str] = lambda _: "",
) -> None:
    """Waits until no worker is absent, and says every 10 s for whom it waits.

    Args:
      roster: the workers.
      absent: the ranks that are still missing.
      where: what they are missing from, for the message.
      timeout_s: seconds to wait.
      check: raises if waiting is in vain.
      whereabouts: tells where workers are.

    Raises:
      DeadlineError: some did not come; it names them.
    """
    with WAIT.during(roster, where) as wait:
        # No loop stands in the `with` itself: CPython leaves some jumps back to its head out of it.
        _await(wait, roster, absent, where, timeout_s, check, whereabouts)


def _await(
    wait: Event,
    roster: Roster,
    absent: Callable[[], Sequence[int]],
    where: str,
    timeout_s: float,
    check: Callable[[], None],
    whereabouts: Callable[[Sequence[int]], str],
) -> None:
    clock = RunningClock()
    start = clock.now()
    spoken, pause = start, 0.001
    while missing := absent():
        wait.arguments = tuple(roster.names[rank] for rank in missing)
        check()
        now = clock.now()
        if now - start > timeout_s:
            raise DeadlineError(
                f"{roster.names[roster.rank]} waited {timeout_s:g} s {where} for {roster.named(missing)}. "
                f"HINT: see whether they run and whether their output shows an error.\n{whereabouts(missing)}".rstrip()
            )
        if now - spoken > _SPEAK_EVERY_S:
            spoken = now
            say(f"{roster.names[roster.rank]} has waited {now - start:.0f} s {where} for {roster.named(missing)}")
        # Most workers come within milliseconds; whoever waits for minutes must not keep the service busy.
        time.sleep(pause)
        pause = min(2 * pause, _POLL_S)
