"""One start of this machine's ranks: until all have ended, or one has failed and the others are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, Self

from jaxtribute._src.addons.launcher.escalation import ABORTED, NOT_HEARD, Escalation, Signal, stopped_code
from jaxtribute._src.addons.launcher.family import Family, Process
from jaxtribute._src.addons.launcher.last_calls import aborted_by_gloo
from jaxtribute._src.addons.launcher.output import OutputReader, RankOutput, copy_size
from jaxtribute._src.addons.launcher.terminal import say
from jaxtribute._src.addons.launcher.tracebacks import heading, message
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import ExitCode


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
      kind: what it came to.
      code: the exit code that says so: 0, the rank's own, or 128 and the number of the signal that killed it.
      rank: the rank that was first, if any.
      words: what happened there: one line, or as many as the message of an error has.
      traceback: its traceback, if one was printed.
      killed: how many ranks were ended by a signal that the launcher did not send.
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


_LOST = re.compile(r"worker (\d+) \([^()]*\) was lost")
CAUSE_S = 3.0
"""Seconds that the rank that caused a failure may take to end once another has ended because of it."""
HOLD_S = 1.0
"""Seconds after SIGTERM in which nothing is shown, as a rank may not listen for it and take others along."""
DRAIN_S = 1.0
"""Seconds without any output after which it is not waited for that processes close it which outlive their rank."""


@dataclass
class Program:
    """Command of one rank, and the place of its output."""

    command: Sequence[str]
    environment: Mapping[str, str]
    output: RankOutput
    terminal: bool = False


@dataclass(frozen=True)
class _End:
    rank: int
    code: int
    ours: bool
    """True if the launcher's own signal ended it."""


class Attempt:
    """The ranks of this machine, started once.

    Args:
      programs: by rank.
      grace_s: seconds between SIGTERM and SIGKILL.
      save_s: seconds that preempted ranks have to save.
      calls: tells the ranks' last calls.
    """

    def __init__(
        self,
        programs: Mapping[int, Program],
        grace_s: float,
        save_s: float,
        calls: Callable[[], Mapping[int, str]] = dict[int, str],
    ) -> None:
        self._programs, self._calls = programs, calls
        self._last_calls: Mapping[int, str] = {}
        self._signals = Escalation(grace_s, save_s)
        self._ends: list[_End] = []
        self._readers: list[OutputReader] = []
        self._failing = False

    async def run(self) -> Outcome:
        """Starts the ranks and waits until all have ended."""
        with Family() as family:
            try:
                waiting = {self._start(family, rank): rank for rank in self._programs}
                await self._wait(family, waiting)
            finally:
                # The processes first: their output ends with them.
                family.close()
                for reader in self._readers:
                    await reader.finish(DRAIN_S)
                for rank, program in self._programs.items():
                    program.output.close()
                    program.output.release(dropped=self._only_follows(rank))
        return self._judge()

    def stop(self) -> None:
        """Ends the ranks because of a failure elsewhere."""
        self._failing = True
        self._signals.stop()

    def forward(self, number: Signal) -> None:
        """Hands a signal on; see `Escalation.forward`."""
        if number is Signal.SIGTERM:
            for program in self._programs.values():
                program.output.hold()
            asyncio.get_running_loop().call_later(HOLD_S, self._show)
        self._signals.forward(number)

    def resize(self) -> None:
        """Tells a rank that has a terminal how large it is now."""
        for reader in self._readers:
            if reader.terminal is not None:
                copy_size(reader.terminal)

    def _start(self, family: Family, rank: int) -> asyncio.Future[int]:
        _, reader, end = start_rank(family, rank, self._programs[rank])
        self._readers.append(reader)
        return end

    async def _wait(self, family: Family, waiting: dict[asyncio.Future[int], int]) -> None:
        while waiting:
            self._signals.send_due(family)
            self._signals.changed.clear()
            wake = asyncio.ensure_future(self._signals.changed.wait())
            # `wake` ends the wait when a signal has changed what is due, which the timeout does not know of.
            timeout = self._signals.wait_s
            done, _ = await asyncio.wait([*waiting, wake], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            wake.cancel()
            # `done` has no order: of ranks that have ended together the lowest comes first.
            for future in [one for one in waiting if one in done]:
                self._ended(waiting.pop(future), future.result())

    @property
    def _not_heard(self) -> bool:
        """True if a rank has ended because it does not listen for SIGTERM, which the launcher has handed on."""
        return self._signals.asked is Signal.SIGTERM and any(end.code in NOT_HEARD for end in self._ends)

    def _show(self) -> None:
        """Shows what the ranks have said since SIGTERM, unless one did not listen for it: the others then fail."""
        if not self._not_heard:
            for program in self._programs.values():
                program.output.release()

    def _only_follows(self, rank: int) -> bool:
        """True if a rank has failed only because another did not listen for SIGTERM, on this machine or another."""
        code = next((end.code for end in self._ends if end.rank == rank), 0)
        if self._signals.asked is Signal.SIGTERM and rank > 0 and code in ABORTED:
            return True
        return self._not_heard and code == ExitCode.ELSEWHERE

    def _ended(self, rank: int, code: int) -> None:
        # A signal that the launcher has not sent is somebody else's, such as the kernel's where memory ran out.
        end = _End(rank, code, ours=-code in self._signals.sent)
        self._ends.append(end)
        if code == 0 or self._failing or self._signals.asked is not None:
            return
        # One rank has saved, so all have agreed to: the others get the time that saving takes, not that of a failure.
        if code == ExitCode.RESUME:
            if not self._signals.is_due:
                self._signals.save()
            return
        self._failing = True
        # Before the others go on, or end.
        self._last_calls = self._calls()
        # A rank that ends because of another tells by its code that the cause is still to come.
        self._signals.stop(CAUSE_S if code == ExitCode.ELSEWHERE else 0.0)
        for other, program in self._programs.items():
            # What the others say from now on comes of the failure; it is in their log files.
            if other != rank and code != ExitCode.ELSEWHERE:
                program.output.shown = False

    def _judge(self) -> Outcome:
        bad = [end for end in self._ends if end.code != 0]
        own = [end for end in bad if not end.ours]
        codes = list(map(attrgetter("code"), own))
        killed = sum(code < 0 for code in codes)
        # In the order of their ends: the first that failed by itself is the cause; one that only reports a failure of
        # another is named where that other one is not to be seen, as on another machine.
        causes = sorted(
            [end for end in own if end.code != ExitCode.RESUME], key=lambda end: end.code == ExitCode.ELSEWHERE
        )
        if self._signals.asked is not None and (bad or self._signals.asked is Signal.SIGINT):
            return stopped(self._signals.asked, {end.rank: end.code for end in self._ends})
        if causes and causes[0].code == ExitCode.ELSEWHERE:
            return self._failure_elsewhere(causes[0].rank, killed)
        if causes:
            cause = causes[0]
            return failure(cause.code, cause.rank, self._programs[cause.rank].output, killed, self._last_calls)
        if own:
            return Outcome(Kind.PREEMPTED, ExitCode.RESUME, own[0].rank, "saved and asks to be started again")
        return Outcome(Kind.STOPPED, 128 + Signal.SIGTERM) if bad else Outcome(Kind.DONE)

    def _failure_elsewhere(self, rank: int, killed: int) -> Outcome:
        """Outcome of ranks that have only reported a failure of another one, which is named if they have named it."""
        told = failure(ExitCode.ELSEWHERE, rank, self._programs[rank].output, killed)
        named = [_LOST.search(line.decode(errors="replace")) for line in self._programs[rank].output.lines()]
        lost = next((int(match[1]) for match in reversed(named) if match), None)
        if lost is None:
            return told
        return replace(told, rank=lost, words=f"was lost, as rank {rank} says: it gave no sign of life", traceback="")


def stopped(asked: Signal, ends: Mapping[int, int], *, islands: bool = False) -> Outcome:
    """Outcome of processes that a signal to the launcher has ended.

    Args:
      asked: the signal.
      ends: return codes by rank; one may say that its rank has saved, and asks to be started again.
      islands: whether they are islands, which save nothing at a signal.
    """
    if ExitCode.RESUME in ends.values():
        return Outcome(Kind.PREEMPTED, ExitCode.RESUME)
    code = stopped_code(asked, ends)
    if code != ExitCode.RESUME:
        return Outcome(Kind.STOPPED, code)
    if islands:
        words = (
            "SIGTERM came, at which islands save nothing; another start goes on from what they have saved before with "
            "jd.CheckpointManager, if it restores that"
        )
        return Outcome(Kind.STOPPED, code, words=words)
    deaf = sorted([rank for rank, end in ends.items() if end in NOT_HEARD])
    words = "SIGTERM came, and no rank has said by exit code 75 that it has saved"
    if deaf and len(deaf) == len(ends):
        words = (
            "nothing was saved at SIGTERM, as no rank listened for it: all were still starting, or have no "
            "jd.experimental.PreemptionCheckpointHandler"
        )
    elif deaf and 0 not in ends.values():  # one that ends well may have saved in its own way
        names = f"rank{'s' if len(deaf) > 1 else ''} {', '.join(map(str, deaf))}"
        words = f"nothing was saved at SIGTERM, as {names} did not listen for it, or was still starting"
    return Outcome(Kind.STOPPED, code, words=words)


SAME = 3
"""Number of ends in a row with the same error after which nothing else is to be expected."""
SHORT_S = 60.0
"""Seconds of a life in which a process is taken to have come no further than the last time."""


class Repetition:
    """The last ends of a job, or of an island."""

    def __init__(self) -> None:
        self._errors: deque[str] = deque(maxlen=SAME)

    def loops(self, outcome: Outcome, lasted_s: float) -> bool:
        """Takes note of an end; true if it ends in the same way over and over.

        Args:
          outcome: the end.
          lasted_s: seconds since the start before it.
        """
        line = heading(outcome.traceback)
        if not line or lasted_s > SHORT_S:
            self._errors.clear()
            return False
        self._errors.append(line)
        return len(self._errors) == SAME and len(set(self._errors)) == 1

    @staticmethod
    def described(who: str) -> str:
        """Says that it was found."""
        return (
            f"{who} has ended {SAME} times in a row with the same error, each within {SHORT_S:g} s of its start: it "
            "would go on like this, so the job ends here"
        )


def failure(
    code: int, rank: int, output: RankOutput, killed: int = 0, calls: Mapping[int, str] | None = None
) -> Outcome:
    """Outcome of a rank that has failed, in words.

    Args:
      code: its return code.
      rank: which it is.
      output: what it has said.
      killed: see `Outcome`.
      calls: the last calls of the ranks.
    """
    traceback = output.traceback()
    if code == -Signal.SIGABRT and not traceback and (why := aborted_by_gloo(output.lines(), calls or {})):
        return Outcome(Kind.FAILED, exit_code(code), rank, f"{in_words(code)}, {why}", killed=killed)
    if code == -Signal.SIGKILL:  # somebody else's, before which the program has said nothing of it
        return Outcome(Kind.FAILED, exit_code(code), rank, in_words(code), killed=killed)
    if output.noise() and output.shown and not traceback:  # which says more
        say(f"rank {rank} was connected to these ranks (said at its start, and not the cause):\n{output.noise()}")
    if traceback and code == -Signal.SIGABRT:
        code = 1  # it was about to end by its exception, and JAX aborts a process whose coordinator goes first
    words = in_words(code)
    if traceback:
        words += ": " + message(traceback)
    elif last := output.last_line():
        words += f", after the line {last!r}"
    return Outcome(Kind.FAILED, exit_code(code), rank, words, traceback, killed)


def start_rank(
    family: Family,
    rank: int,
    program: Program,
    feed: Callable[[bytes], None] | None = None,
    pass_fds: Sequence[int] = (),
) -> tuple[Process, OutputReader, asyncio.Future[int]]:
    """Starts a rank's process; returns it, who reads its output, and its return code once there is one.

    Args:
      family: the process's.
      rank: for messages.
      program: what to start.
      feed: takes the output in place of the program's own.
      pass_fds: see `Family.start`.

    Raises:
      ArgumentError: the program cannot be run.
    """
    reader = OutputReader(feed or program.output.feed, terminal=program.terminal)
    try:
        process = family.start(program.command, program.environment, reader.child_end, pass_fds=pass_fds)
    except OSError as error:
        raise ArgumentError(
            f"rank {rank} cannot be started: {program.command[0]!r}: {error.strerror}. HINT: give a Python file, "
            "or a program that this machine can run; a script says in its first line what runs it (#!/bin/sh)."
        ) from error
    finally:
        # Open here, too, it would hide the end of the output, which comes when nobody can write any more.
        os.close(reader.child_end)
    return process, reader, _exit_of(process)


def _exit_of(process: Process) -> asyncio.Future[int]:
    """The return code, once there is one."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()

    def settle(code: int) -> None:
        if not future.done():
            future.set_result(code)

    def wait() -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            loop.call_soon_threadsafe(settle, code)

    threading.Thread(target=wait, name=f"wait for {process.pid}", daemon=True).start()
    return future
