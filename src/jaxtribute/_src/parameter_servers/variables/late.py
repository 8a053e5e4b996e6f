"""Functions that run for long on a worker: a warning that says where they are, and the end of their time."""

from __future__ import annotations

import logging
import time

from jaxtribute._src.parameter_servers.scheduling.closures import Closure, Worker
from jaxtribute.errors import ArgumentError, DeadlineError

_LOG = logging.getLogger(__name__)
WARN_S = 60.0
"""Age at which a function is told of for the first time, in seconds; then whenever its age has doubled."""
_USUAL = 10
"""A function that has run before is late when it takes so many times as long as usual."""


def checked(timeout_s: float | None) -> float | None:
    """Returns the time that a function has, in seconds.

    Raises:
      ArgumentError: it is no positive number.
    """
    number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if timeout_s is None or (number and 0 < timeout_s < float("inf")):
        return timeout_s
    raise ArgumentError(f"timeout_s is {timeout_s!r}. HINT: pass a number of seconds above 0, or None for no end.")


def age_of(closure: Closure) -> float:
    """Returns for how many seconds a closure has been running."""
    return 0.0 if closure.started is None else time.monotonic() - closure.started


def left_s(closure: Closure) -> float:
    """Returns how many seconds a closure may run yet, at least 0."""
    return float("inf") if closure.timeout_s is None else max(0.0, closure.timeout_s - age_of(closure))


def is_late(closure: Closure) -> bool:
    """True if a closure runs for longer than it may, or so long that it is to be told again."""
    age = age_of(closure)
    if closure.timeout_s is not None:
        return age >= closure.timeout_s
    if closure.warned_s:
        return age > 2 * closure.warned_s
    return age > max(WARN_S, _USUAL * (closure.definition.seconds or 0.0))


def warn(worker: Worker, closure: Closure, stack: str) -> None:
    """Logs that a closure is late.

    Args:
      worker: where it runs.
      closure: the closure.
      stack: where its thread is.
    """
    closure.warned_s = age_of(closure)
    _LOG.warning(
        "worker %d has run %s for %.0f s. HINT: schedule(..., timeout_s=...) ends a function that takes too long. "
        "It is here:\n%s",
        worker.index,
        closure.definition.name,
        closure.warned_s,
        stack or "(its process does not answer)",
    )


def error_of(worker: Worker, closure: Closure, stack: str) -> DeadlineError:
    """Returns the error of a closure that has run for longer than it may.

    Args:
      worker: where it runs.
      closure: the closure.
      stack: where its thread is.
    """
    error = DeadlineError(
        f"{closure.definition.name} has run for {age_of(closure):.1f} s on worker {worker.index}, longer than "
        f"timeout_s={closure.timeout_s:g}. HINT: give it more time, or look at where it was, which is noted below."
    )
    error.add_note(f"It was here:\n{stack or '(its process did not answer)'}")
    return error
