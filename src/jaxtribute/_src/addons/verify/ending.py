"""`Ending`: when a program that is watched has shown what it runs."""

from __future__ import annotations

import gc
import inspect
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from jaxtribute._src.addons.tools.user_scripts import Finished
from jaxtribute._src.addons.verify.sources import Place, is_theirs
from jaxtribute._src.addons.verify.steps import CALLS
from jaxtribute.extending import Function

_PATIENCE, _PATIENCE_S = 500, 20.0
"""Calls of a step, and seconds, after which no uneven batch is waited for."""
_QUIET_S = 5.0
"""Seconds without a new step after which none is waited for, such as that of an evaluation."""
_UNSEEN_S = 30.0
"""The same while the program has functions that have not run."""


class Ending:
    """Ends a program some calls and seconds after its last new step.

    Args:
      again: number of calls; None to let the program run to its end.
    """

    def __init__(self, again: int | None) -> None:
        self._again = again
        self._repeats = 0
        self._begun = time.perf_counter()
        self._called: set[Any] | None = None
        """The functions that have run, also on no replicas or within others, and those that are not the program's.

        None if nobody notes them.
        """
        self._unseen: list[str] = []
        self._asked = 0.0
        """The names of the others, and when they were looked up."""

    def restart(self) -> None:
        """Begins to count anew, at a new step."""
        self._repeats, self._begun = 0, time.perf_counter()

    def pause(self, seconds: float) -> None:
        """Leaves out seconds that a verification took."""
        self._begun += seconds

    def ran(self, function: object) -> None:
        """Notes a function that has run."""
        if self._called is not None and isinstance(function, Function):
            self._called.add(function)

    @contextmanager
    def noting(self) -> Generator[None]:
        """Notes which functions are called."""
        # What was there before the program began, such as in a process that runs several, is none of its functions.
        self._called, call = set[Any](_functions()), Function.__call__

        def called(function: Any, *args: Any, **kwargs: Any) -> Any:
            self.ran(function)
            return call(function, *args, **kwargs)

        with mock.patch.object(Function, "__call__", called):
            yield

    def count(self, *, calls: int, waits: bool) -> None:
        """Counts a call of a step that is verified.

        Args:
          calls: the most calls that any step has had.
          waits: whether it matters if an uneven batch comes.

        Raises:
          Finished: the program has shown enough.
        """
        if self._again is None:
            return
        self._repeats += 1
        seconds = time.perf_counter() - self._begun
        patient = self._repeats < _PATIENCE and seconds < _PATIENCE_S
        waits = waits or (calls < CALLS[1] and self._again > 1)
        if self._repeats < self._again or seconds <= _QUIET_S or (waits and patient):
            return
        now = time.perf_counter()
        if now > self._asked + 1 or not self._unseen:
            self._asked, self._unseen = now, self.unseen()
        if seconds > _UNSEEN_S or not self._unseen:
            raise Finished

    def unseen(self) -> list[str]:
        """The user's functions that have not run, with their lines."""
        if self._called is None:
            return []
        ran = self._called
        # Of a kind of its own, such as `tf.function`'s, it may have run as Python, which it tells itself.
        functions = [one for one in _functions() if one not in ran and not getattr(one, "ran_as_python", False)]
        codes = [getattr(inspect.unwrap(one.python_function), "__code__", None) for one in functions]
        return [
            f"{code.co_name} ({Place(code.co_filename, code.co_firstlineno)})"
            for code in codes
            if code is not None and is_theirs(code.co_filename)
        ]


def _functions() -> list[Function[..., Any]]:
    return [one for one in gc.get_objects() if issubclass(type(one), Function)]
