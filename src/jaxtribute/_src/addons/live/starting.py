"""Switching the records of a run on: by the launcher, by the environment, or by a call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtribute._src.addons.launcher.environment import LAUNCHER, RUN, holds_a_place, rank_of_this_process
from jaxtribute._src.addons.live.files import ROLES
from jaxtribute.errors import ConfigError
from jaxtribute.extending import Kinds, shown, whole_number

if TYPE_CHECKING:
    from jaxtribute._src.addons.live.recorder import Recorder
    from jaxtribute.extending import Owner

_TASK = "JAXTRIBUTE_RUN_TASK"
"""Set by the coordinator of parameter servers for the processes of its tasks: `ps 0`, `worker 0`, and so on."""


def record_run(directory: str | os.PathLike[str]) -> None:
    """Records what this process does into the folder of a run, for `jaxtribute top` and `jaxtribute serve`.

    Every worker of a job calls it with the same folder, before it trains; `jaxtribute launch --run` and the environment
    variable `JAXTRIBUTE_RUN` do the same. Records of a run that is started again are added to those that are there;
    two jobs never record into one folder at a time.

    Args:
      directory: the folder, made if need be; for several machines one that all of them see.

    Raises:
      ConfigError: this process is recorded already, another job is recorded in the folder, or it cannot be written to.
    """
    start_recording(directory, rank_of_this_process(), "worker")


def start_recording(directory: str | os.PathLike[str], rank: int, role: str) -> Recorder:
    """Starts a recorder of this process, and returns it.

    Args:
      directory: the folder of the run.
      rank: the process's number, among those of its role.
      role: what it is in the run.

    Raises:
      ConfigError: likewise.
    """
    # Most programs record nothing, and load none of it.
    from jaxtribute._src.addons.live.holding import hold
    from jaxtribute._src.addons.live.noted import Noted
    from jaxtribute._src.addons.live.recorder import Recorder
    from jaxtribute.extending import Cluster

    if any(isinstance(one, Noted) for one in Kinds.DISPATCH.observers):
        raise ConfigError(
            f"this process is recorded already, and {os.fspath(directory)!r} was asked for too. HINT: call "
            f"jd.config.record_run once, and not where the launcher's --run or {RUN} does it."
        )
    owner: Owner | None = None
    try:
        # Where a launcher has started this process, it is the launcher that holds the folder.
        if rank == 0 and role == "worker" and os.environ.get(LAUNCHER) != "1":
            owner = hold(Path(directory), Cluster.say)
        recorder = Recorder(Path(directory), rank, role, owner)
    except OSError as error:
        if owner is not None:
            owner.release()
        raise ConfigError(
            f"rank {rank} cannot record the run in {os.fspath(directory)!r}: {error}. "
            "HINT: name a folder that this user may write to."
        ) from error
    recorder.start()
    return recorder


def apply_environment() -> None:
    """Applies `JAXTRIBUTE_RUN`, and takes it away: processes that this one starts are no workers of the run."""
    directory, task = os.environ.pop(RUN, ""), os.environ.pop(_TASK, "")
    if directory and task:
        role, _, index = task.partition(" ")
        number = whole_number(index)
        if role not in ROLES or number is None:
            raise ConfigError(
                f"{_TASK}={shown(task)} names no task of parameter servers. HINT: unset it; the coordinator sets it "
                "for the processes that it starts."
            )
        start_recording(directory, number, ROLES[role])
    elif directory and not holds_a_place():
        record_run(directory)
