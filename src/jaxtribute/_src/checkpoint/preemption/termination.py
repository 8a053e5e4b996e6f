"""`TerminationConfig`: how a machine says that it is about to be taken away, and what happens then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from jaxtribute._src import settings
from jaxtribute._src.exit_codes import RESUME as RESUME_CODE


def exit_to_resume() -> NoReturn:
    """Ends the program with the exit code that asks the launcher to start it again."""
    sys.exit(RESUME_CODE)


@dataclass(frozen=True)
class TerminationConfig:
    """Settings of a `PreemptionCheckpointHandler`.

    Args:
      termination_watcher_fn: asked every second, in a thread of its own, whether this machine is about to be taken
        away; for platforms that say so by other means than SIGTERM, which always counts.
      exit_fn: called on every worker once the checkpoint is complete. By default the program ends with exit code 75,
        on which `jaxtribute launch --max-restarts` starts it again.
      grace_period: seconds from the notice to the end of the machine. With more than 0 the workers save at once, train
        on as long as time allows, and save again; by default they save once.
      save_fn: called instead of the manager's `save`, with the arguments of `save_checkpoint_if_preempted`.

    Raises:
      ArgumentError: a negative grace period.
      ArgumentTypeError: a grace period that is no number, or a function that is none.

    Source: `tf.distribute.experimental.TerminationConfig`.
    """

    termination_watcher_fn: Callable[[], bool] | None = None
    exit_fn: Callable[[], Any] | None = None
    grace_period: float | None = None
    save_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        settings.amount("grace_period", self.grace_period, optional=True)
        for name in ("termination_watcher_fn", "exit_fn", "save_fn"):
            settings.function(name, getattr(self, name), optional=True)
