"""Outcome of one start of a job, on one machine or on all."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self


class Kind(StrEnum):
    """Result of an attempt."""

    DONE = "done"
    FAILED = "failed"
    PREEMPTED = "preempted"
    STOPPED = "stopped"
    """Ended by the launcher, because of another machine or of a signal."""


@dataclass(frozen=True)
class Outcome:
    """Kind of end, and the rank that caused it.

    Attributes:
        kind: What it came to.
        code: The exit code that says so: 0, the rank's own, or 128 and the number of the signal that killed it.
        rank: The rank that was first, if any.
        words: One line on what happened there.
        traceback: Its traceback, if one was printed.
        killed: How many ranks were ended by a signal that the launcher did not send.
    """

    kind: Kind
    code: int = 0
    rank: int | None = None
    words: str = ""
    traceback: str = ""
    killed: int = 0

    def as_json(self) -> dict[str, Any]:
        """Plain data for another launcher."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads the result of `as_json`."""
        fields: dict[str, Any] = {**data, "kind": Kind(data["kind"])}
        return cls(**fields)


def exit_code(returncode: int) -> int:
    """A process's return code as the shell would say it."""
    return 128 - returncode if returncode < 0 else returncode


def in_words(returncode: int) -> str:
    """Describes the end of a process."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was killed by {name}"
