"""Keeps the last call of a rank where the launcher reads it if the process is aborted, in C++, without a word.

Gloo aborts a process whose collective does not fit to that of another: no Python runs any more, and what the others
know of it is half a second old. So each call is written down as it begins, which takes about a microsecond.
"""

from __future__ import annotations

import mmap
import os
from functools import partial
from pathlib import Path

from jaxtribute._src.core.callers import caller
from jaxtribute._src.core.cluster import runtime, step_log
from jaxtribute._src.core.cluster.roster import Roster
from jaxtribute._src.core.cluster.step_log import StepLog

FILE = "JAXTRIBUTE_LAST_CALL"
"""Names the launcher's file, whose size is that of the longest text."""


def install() -> None:
    """Has a process that joins a cluster under the launcher keep its calls."""
    runtime.before_start.append(_open)


def _open(roster: Roster, bind: str, timeout_s: float) -> None:
    del roster, bind, timeout_s
    # Taken away: processes that this one starts are no ranks.
    path = os.environ.pop(FILE, None)
    if path is None:
        return
    try:
        with Path(path).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
    except (OSError, ValueError):  # of a launcher on another machine, or in another container
        return
    step_log.on_call.append(partial(_keep, memory, {}))


def _keep(memory: mmap.mmap, lines: dict[str, str], log: StepLog) -> None:
    """Writes down the call that begins.

    Args:
      memory: where.
      lines: the line of the first call of each step, by name: to look for it each time would take too long.
      log: the calls of this process.
    """
    told, place = log.last, lines.get(log.name)
    if place is None:
        place = "" if ", called at " in told else f", first called at {caller()}"
        if told.startswith("step "):  # names of other calls may be many
            lines[log.name] = place
    text = f"{told}{place}, after {log.batches} batches\n".encode(errors="replace")[: len(memory)]
    memory[: len(text)] = text
