"""Waiting for workers, with a deadline, and saying for whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from jaxtribute._src.cluster.roster import Roster
from jaxtribute._src.cluster.steps import RunningClock
from jaxtribute._src.cluster.watch import say
from jaxtribute._src.observed import observe, observing
from jaxtribute.errors import DeadlineError

_SPEAK_EVERY_S = 10.0
_POLL_S = 0.05


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
    with observing("barrier", where):
        _await(roster, absent, where, timeout_s, check, whereabouts)


def _await(
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
        check()
        observe("absent", "at", [roster.names[rank] for rank in missing])
        now = clock.now()
        if now - start > timeout_s:
            raise DeadlineError(
                f"{roster.names[roster.rank]} waited {timeout_s:g} s {where} for {roster.named(missing)}. "
                f"HINT: see whether they run and whether their output shows an error.\n{whereabouts(missing)}".rstrip()
            )
        if now - spoken > _SPEAK_EVERY_S:
            spoken = now
            say(f"{roster.names[roster.rank]} has waited {now - start:.0f} s {where} for {roster.named(missing)}")
        time.sleep(pause)
        pause = min(2 * pause, _POLL_S)
