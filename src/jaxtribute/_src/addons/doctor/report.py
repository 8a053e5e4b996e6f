"""The doctor's report: what is known before any check, and what the checks find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from jaxtribute import ClusterSpec
from jaxtribute.cluster_resolver import Detection, detect
from jaxtribute.errors import JaxtributeError
from jaxtribute.extending import Roster


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

    @classmethod
    def of_error(cls, title: str, message: str) -> Finding:
        """An error of the library: what its message says, and the hint as what to do."""
        text, _, fix = message.partition(" HINT: ")
        return cls(Level.ERROR, title, text, fix)


@dataclass(frozen=True)
class Situation:
    """Facts that are known before any check.

    Attributes:
        environ: The environment.
        detection: The resolver that fits it, and why.
        spec: The cluster as that resolver says it.
        roster: The workers that train together, and which of them this process is; `None` where it is none of them.
        problem: Why there is less than that.
    """

    environ: Mapping[str, str]
    detection: Detection | None = None
    spec: ClusterSpec | None = None
    roster: Roster | None = None
    problem: str = ""


def look(environ: Mapping[str, str]) -> Situation:
    """Asks the resolvers.

    Args:
        environ: The environment; a resolver may set `CUDA_VISIBLE_DEVICES` in it.
    """
    detection: Detection | None = None
    spec: ClusterSpec | None = None
    try:
        detection = detect(environ)
        if detection is None:
            return Situation(environ)
        spec = detection.resolver.cluster_spec()
        task_type, task_id = detection.resolver.own_task()
        outside = task_type not in ("chief", "worker")
        # A parameter server or an evaluator has no place among the workers.
        roster = None if outside else Roster.of(spec.as_dict(), task_type, task_id)
        return Situation(environ, detection, spec, roster)
    except JaxtributeError as error:
        # What was found until then belongs to the report.
        return Situation(environ, detection, spec, problem=str(error))
