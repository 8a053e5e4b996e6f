"""Spare processes of islands: started, with all that they import, and waiting for the place of one that dies."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio import Future
from collections.abc import Callable

from jaxtribute._src.addons.launcher.attempt import Program, start_rank
from jaxtribute._src.addons.launcher.environment import RUN, SPARE, TF_CONFIG
from jaxtribute._src.addons.launcher.family import Family, Process
from jaxtribute._src.addons.launcher.output import OutputReader, RankOutput

_AGAIN_S = 3.0
"""Seconds from when a spare is taken to the start of another: the islands have better things to do meanwhile."""
Started = tuple[Process, OutputReader, Future[int]]
"""A process, the reader of its output, and its return code once there is one."""


class _Spare:
    """A process that waits.

    Args:
      family: where it belongs.
      program: an island's, of whose environment it is told a part later.
    """

    def __init__(self, family: Family, program: Program) -> None:
        reading, self._pipe = os.pipe()
        self._environment = {**program.environment, SPARE: str(reading)}
        # It has no rank yet, under which it could record what it does.
        for name in (TF_CONFIG, RUN):
            self._environment.pop(name, None)
        # A rank's output, as its lines are that rank's once it has one.
        self._output = program.output
        waiting = Program(program.command, self._environment, program.output)
        try:
            self.started: Started = start_rank(family, -1, waiting, feed=self._feed, pass_fds=[reading])
        finally:
            os.close(reading)

    def _feed(self, data: bytes) -> None:
        self._output.feed(data)

    def is_alive(self) -> bool:
        """True if the process has not ended."""
        return self.started[0].poll() is None

    def become(self, program: Program) -> Started:
        """Tells the process which island it is."""
        told = {name: value for name, value in program.environment.items() if self._environment.get(name) != value}
        self._output.close()
        self._output = program.output
        try:
            os.write(self._pipe, json.dumps(told).encode())
        except BrokenPipeError:  # it ends, as an island that has died again
            pass
        finally:
            os.close(self._pipe)
        return self.started

    def drop(self) -> None:
        """Lets the process end."""
        os.close(self._pipe)
        self._output.close()


class Spares:
    """The spare processes of a job.

    Args:
      count: how many.
      program: makes the program of one.
    """

    def __init__(self, count: int, program: Callable[[], Program]) -> None:
        self._count, self._program = count, program
        self._waiting: list[_Spare] = []
        self._is_closed = False

    def fill(self, family: Family) -> None:
        """Starts as many as are missing."""
        while not self._is_closed and len(self._waiting) < self._count:
            self._waiting.append(_Spare(family, self._program()))

    def start(self, family: Family, rank: int, program: Program) -> Started:
        """Starts an island's process, or lets a spare become it."""
        while self._waiting:
            spare = self._waiting.pop(0)
            asyncio.get_running_loop().call_later(_AGAIN_S, self.fill, family)
            if spare.is_alive():
                return spare.become(program)
            spare.drop()
        return start_rank(family, rank, program)

    def close(self) -> None:
        """Lets those end that still wait."""
        self._is_closed = True
        while self._waiting:
            self._waiting.pop().drop()


def waiting_output(*, shown: bool) -> RankOutput:
    """The output of a process that has no rank yet."""
    return RankOutput(b"[spare] ", shown=shown, log=None)
