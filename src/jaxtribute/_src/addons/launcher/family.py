"""Processes that end together, whatever becomes of the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import TracebackType
from typing import IO, Self

# It leads the process group of the family and waits for the end of its input, which comes when the process that holds
# the other end ends, even by SIGKILL. Then it kills the group: the family, all that they started, and itself.
_GUARDIAN = """
import os, signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
    signal.signal(number, signal.SIG_IGN)
os.read(0, 1)
os.killpg(0, signal.SIGKILL)
"""

Process = subprocess.Popen[bytes]


class Family:
    """Child processes in one process group, led by a guardian that kills it when this process is gone.

    The group is not the terminal's: Ctrl-C reaches only this process, which decides what its children are told.
    """

    def __init__(self) -> None:
        # -I -S: nothing of the user's is imported, and it starts in milliseconds.
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARDIAN],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        self.members: list[Process] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the guardian and of all members."""
        return (self._guardian.pid, *map(attrgetter("pid"), self.members))

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: int | IO[bytes],
        errors: int | IO[bytes] = subprocess.STDOUT,
        pass_fds: Sequence[int] = (),
    ) -> Process:
        """Starts one more member. Its standard input is empty.

        Args:
          command: the program and its arguments.
          environment: all of its environment.
          output: where its standard output goes: a file, or `subprocess.PIPE`.
          errors: where its standard error goes, with the output by default.
          pass_fds: file descriptors that it inherits.
        """
        member = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            pass_fds=pass_fds,
            process_group=self._guardian.pid,
        )
        self.members.append(member)
        return member

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to every member that runs."""
        for member in self.members:
            member.send_signal(number)  # which does nothing for one that has ended

    def wait(self, timeout_s: float) -> bool:
        """Waits for all members to end; false where some still run after that many seconds."""
        end = time.monotonic() + timeout_s
        for member in self.members:
            try:
                member.wait(max(end - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                return False
        return True

    def close(self) -> None:
        """Kills whatever is left of the group: members, what they started, the guardian. Again is harmless."""
        if self._guardian.returncode is not None:
            return
        os.killpg(self._guardian.pid, signal.SIGKILL)
        for member in self.members:
            member.wait()
        self._guardian.wait()
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
