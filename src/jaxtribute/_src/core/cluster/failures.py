"""Failures of workers: told to the other workers and the launcher, recognized in an error, and said on stderr."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict, dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of a job's processes that tell the launcher more than that they failed."""

    ELSEWHERE = 70
    """The process's cluster failed elsewhere: it is not the cause (EX_SOFTWARE)."""
    RESUME = 75
    """The process has saved and asks to be started again (EX_TEMPFAIL)."""


RESUME, ELSEWHERE = int(ExitCode.RESUME), int(ExitCode.ELSEWHERE)


@dataclass(frozen=True)
class Failure:
    """Reason why a cluster cannot go on.

    Attributes:
      rank: the worker that is the cause.
      summary: one line: what happened there.
      details: its traceback, or nothing.
      reporter: the worker that noticed.
    """

    rank: int
    summary: str
    details: str
    reporter: int

    @classmethod
    def raised(cls, rank: int, error: BaseException) -> Failure:
        """The failure of a worker whose program raised."""
        lines = traceback.format_exception(error)
        # One line, as it becomes a part of the other workers' messages.
        summary = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
        return cls(rank, f"raised {summary}", "".join(lines), rank)

    def encode(self) -> str:
        """The failure as text."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Failure:
        """The failure that `encode` gave."""
        return cls(**json.loads(text))

    def message(self, names: tuple[str, ...]) -> str:
        """The failure, as the other workers report it."""
        text = f"{names[self.rank]} {self.summary}"
        if self.reporter != self.rank:
            text += f", as {names[self.reporter]} noticed"
        return text


def may_be_broken_collective(error: BaseException | None) -> bool:
    """True if an error may come of a collective that lost a peer: Gloo's is a ValueError."""
    if error is None:
        return False
    import jax  # the launcher, which knows the exit codes, needs none

    return (
        isinstance(error, jax.errors.JaxRuntimeError)
        or (isinstance(error, ValueError) and "Gloo" in str(error))
        # It may come wrapped, by JAX or by the program's own handling.
        or may_be_broken_collective(error.__cause__ or error.__context__)
    )


def say(text: str) -> None:
    """A line on stderr about the cluster; never raises."""
    try:
        sys.stderr.write(f"jaxtribute: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return  # whoever read it is gone, or never was, and the watch must go on
