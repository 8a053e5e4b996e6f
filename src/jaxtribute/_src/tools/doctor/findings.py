"""Results of the doctor's checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """Severity of a finding."""

    FACT = 0
    GOOD = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        level: How bad it is.
        title: What was looked at.
        text: What was found.
        fix: What to do about it.
    """

    level: Level
    title: str
    text: str
    fix: str = ""
