"""Outcome of a call: a value, or an error code and message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtribute.errors import ClusterError, DeadlineError

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, UNAVAILABLE = 0, 1, 2, 3, 4, 5, 14
"""Codes, as TensorFlow and gRPC number them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result, or a code other than `OK` with a message."""

    value: Any = None
    code: int = OK
    message: str = ""


class StatusOrResult:
    """The result of a call that may still be under way; each of its methods waits for it, up to the call's deadline.

    Args:
      wait: waits and returns the outcome.

    Source: `StatusOrResult`, which `tf.distribute.experimental.rpc.Client.call` returns.
    """

    def __init__(self, wait: Callable[[], Outcome]) -> None:
        self._wait = wait

    def is_ok(self) -> bool:
        """Returns True if the function has returned, and has not failed."""
        return self._wait().code == OK

    def get_error(self) -> tuple[int, str]:
        """Returns TensorFlow's number of the error, 0 for none, and the message."""
        outcome = self._wait()
        return outcome.code, outcome.message

    def get_value(self) -> Any:
        """Returns what the function returned, with JAX arrays.

        Raises:
          DeadlineError: there was no answer in time.
          ClusterError: the function failed, there is none of that name, or the server has ended.
        """
        outcome = self._wait()
        if outcome.code == OK:
            return outcome.value
        raise (DeadlineError if outcome.code == DEADLINE_EXCEEDED else ClusterError)(outcome.message)
