"""The launcher of islands: whoever dies is started again alone, while the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from jaxtribute._src.addons.launcher.attempt import (
    DRAIN_S,
    Kind,
    Outcome,
    Program,
    Repetition,
    exit_code,
    failure,
    in_words,
    start_rank,
    stopped,
)
from jaxtribute._src.addons.launcher.certificates import VARIABLES, secret_of_islands, write_certificates
from jaxtribute._src.addons.launcher.environment import INCARNATION
from jaxtribute._src.addons.launcher.escalation import Escalation, Signal
from jaxtribute._src.addons.launcher.family import Family, Process
from jaxtribute._src.addons.launcher.leader import report, worst
from jaxtribute._src.addons.launcher.node import LOOPBACK, LocalNode, Start
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute._src.addons.launcher.output import OutputReader, copy_size
from jaxtribute._src.addons.launcher.spares import Spares, waiting_output
from jaxtribute._src.addons.launcher.terminal import say
from jaxtribute._src.addons.launcher.tracebacks import heading
from jaxtribute.errors import ClusterError, DeadlineError, MissingLibraryError
from jaxtribute.extending import Address, ExitCode, Folder, Kinds

_LOOK_S = 0.5
_ALONE_S = 60.0
"""Seconds that an island which has found no other one that trains waits for the others to end as well."""
_NOBODY = "no other island trains"
_QUICK_S = 30.0
"""Seconds of a life that fails, after two of which in a row the next one has to wait."""
_LONGEST_WAIT_S = 30.0
_LEFT = tuple(f"{error.__module__}.{error.__qualname__}:" for error in (ClusterError, DeadlineError))
_PREEMPTED = (-Signal.SIGTERM, 128 + Signal.SIGTERM, int(ExitCode.RESUME))


class Budget:
    """Starts that are left, of failures and of preemptions.

    Args:
      failures: how often an island is started again after a failure.
      preemptions: how often after a preemption.
    """

    def __init__(self, failures: int, preemptions: int) -> None:
        self._limits = {Kind.FAILED: failures, Kind.PREEMPTED: preemptions}
        self._taken = {Kind.FAILED: 0, Kind.PREEMPTED: 0}

    def take(self, kind: Kind) -> bool:
        """Takes one; false if none is left."""
        if self._taken[kind] >= self._limits[kind]:
            return False
        self._taken[kind] += 1
        return True

    def described(self, kind: Kind) -> str:
        """Number of those that are taken, and of all."""
        what = "restarts" if kind is Kind.FAILED else "preemptions"
        return f"{self._taken[kind]} of {self._limits[kind]} {what}"


@dataclass
class Life:
    """An island's processes, one after the other.

    Attributes:
      rank: the island.
      process: the one that runs.
      incarnation: how many there were before.
      repetition: its last ends.
      quick: how many in a row have failed soon after their start.
    """

    rank: int
    process: Process | None = None
    reader: OutputReader | None = None
    incarnation: int = 0
    repetition: Repetition = field(default_factory=Repetition)
    quick: int = 0

    def wait_s(self, outcome: Outcome, lasted_s: float) -> float:
        """Seconds before the next start: none but after failures that follow each other, whatever each of them says."""
        # One that somebody has killed starts at once, however soon that was.
        has_failed = outcome.kind is Kind.FAILED and outcome.code != exit_code(-Signal.SIGKILL)
        self.quick = self.quick + 1 if has_failed and lasted_s < _QUICK_S else 0
        return min(2.0 ** (self.quick - 3), _LONGEST_WAIT_S) if self.quick > 1 else 0.0

    def is_stopped(self) -> bool:
        """True if somebody has stopped the process (SIGSTOP), so far as this machine tells."""
        if self.process is None:
            return False
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[:1] == ["T"]


class IslandsLauncher:
    """Starts islands on this machine, and each of them again by itself.

    None is ended because another has died, unless fewer are left than suffice. The job is done once all that live are.

    Args:
      options: the launch.
      min_islands: how many suffice.
    """

    def __init__(self, options: Options, min_islands: int) -> None:
        self._options, self._min_islands = options, min_islands
        self._signals = Escalation(options.grace_s, options.save_s)
        self._budget = Budget(options.max_restarts, options.preemptions)
        self._first = options.node_rank * options.workers if options.hosts else 0
        # Above every number that islands of an earlier launcher of this machine have had.
        incarnation = int(time.time()) if options.rejoins else 0
        ranks = range(self._first, self._first + options.workers)
        self._lives = [Life(rank, incarnation=incarnation) for rank in ranks]
        self._certificates: dict[str, str] = {}
        self._spares: Spares
        self._done: set[int] = set()
        self._alone: set[int] = set()
        """Islands that have come back, found no other one that trains, and ended."""
        self._late = False
        """True if an island has come back when those of the other machines, with whom it had trained, had all ended."""
        self._rounds = 0
        self._lost: dict[int, Outcome] = {}
        """Islands that are not started again, and their ends, in order."""
        self._cause: Outcome | None = None
        """Reason for which the job ends before it is done."""

    def forward(self, number: Signal) -> None:
        """Hands a signal on; none is started again then."""
        self._signals.forward(number)

    def resize(self) -> None:
        """Passes on that the terminal has another size."""
        for life in self._lives:
            if life.reader is not None and life.reader.terminal is not None:
                copy_size(life.reader.terminal)

    def grow(self) -> None:
        """Says that there is nothing to do: islands do not end so that others can start."""
        self._inform("SIGUSR1 is for jobs that start again as a whole; here nothing follows from it")

    async def run(self) -> int:
        """Runs the job to its end; the exit code.

        Raises:
          ArgumentError: the program cannot be run, or a log file cannot be written.
        """
        options = self._options
        node = LocalNode(options, options.hosts[options.node_rank] if options.hosts else LOOPBACK)
        with contextlib.closing(node), contextlib.closing(Folder()) as folder, Family() as family:
            own = node.reserve(options.port if options.hosts else 0)
            addresses = self._fixed_addresses() or own
            self._certificates = self._made_certificates(addresses, Path(folder.path))
            # A place's log file is its island's.
            unlogged = LocalNode(replace(options, log_dir=None), node.host)
            self._spares = Spares(options.spares, lambda: self._spare(unlogged, addresses))
            with Kinds.ATTEMPT.during(self, "0", len(addresses), 1) as attempt:
                attempt.result = outcome = await self._all(family, node, addresses)
        if outcome.kind is Kind.STOPPED:
            report(outcome, self._options, shown=True)
        elif self._lost and outcome.kind is Kind.DONE:
            done = "the job is done" if self._done else "the other machines' launchers say whether the job is done"
            self._inform(f"{done}, without {_islands(sorted(self._lost))}")
        return outcome.code

    def _fixed_addresses(self) -> list[str]:
        """The addresses of the islands of all machines; none if there is one machine."""
        options = self._options
        ports = range(options.port, options.port + options.workers)
        return [str(Address(host, port)) for host in options.hosts for port in ports]

    def _made_certificates(self, addresses: list[str], folder: Path) -> dict[str, str]:
        """Settings that name the certificates which islands on several machines need, unless somebody has set some."""
        key = self._options.key
        if not self._options.hosts or key is None or any(os.environ.get(name) for name in VARIABLES):
            return {}
        if find_spec("cryptography") is None:
            raise MissingLibraryError(
                "islands on several machines need certificates, which `cryptography` makes. HINT: pip install "
                "cryptography."
            )
        return write_certificates(secret_of_islands(key, addresses), folder)

    def _spare(self, node: LocalNode, addresses: list[str]) -> Program:
        """The program of a process that is no island yet, and has no log file."""
        program = node.program(Start(addresses, self._first, len(self._lives), 0), 0, self._certificates)
        return replace(program, output=waiting_output(shown=not self._options.split), terminal=False)

    async def _all(self, family: Family, node: LocalNode, addresses: list[str]) -> Outcome:
        told = asyncio.ensure_future(self._tell(family))
        stopped = asyncio.ensure_future(self._end_stopped())
        lives = [asyncio.ensure_future(self._live(family, node, addresses, life)) for life in self._lives]
        try:
            self._spares.fill(family)
            await asyncio.gather(*lives)
        finally:
            self._spares.close()
            for task in (told, stopped, *lives):
                task.cancel()
        return self._judged()

    def _judged(self) -> Outcome:
        asked = self._signals.asked
        # Islands that were lost before the signal, and that the others have gone on without, say nothing of it.
        ended = {rank: outcome.code for rank, outcome in self._lost.items() if outcome.kind is Kind.STOPPED}
        if asked is not None and (ended or asked is Signal.SIGINT):
            return stopped(asked, ended | dict.fromkeys(self._done, 0), islands=True)
        if self._cause is not None:
            return self._cause
        return Outcome(Kind.DONE) if self._done or self._late else worst(list(self._lost.values()))

    async def _tell(self, family: Family) -> None:
        """Sends signals when they are due."""
        while True:
            self._signals.send_due(family)
            self._signals.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._signals.changed.wait(), self._signals.wait_s)

    async def _end_stopped(self) -> None:
        """Ends islands that somebody has stopped, once all others have been done for as long as saving takes."""
        since = None
        while True:
            await asyncio.sleep(_LOOK_S)
            running = [life for life in self._lives if life.process is not None]
            if not (self._done and running and all(life.is_stopped() for life in running)):
                since = None
                continue
            since = since or time.monotonic()
            if time.monotonic() - since > self._options.save_s:
                names = _islands([life.rank for life in running])
                say(f"{names} was stopped by a signal, and the others are done: its process is ended")
                for life in running:
                    if life.process is not None:
                        life.process.kill()
                since = None

    async def _live(self, family: Family, node: LocalNode, addresses: list[str], life: Life) -> None:
        """Keeps an island alive until it is done, or is not started again."""
        rank, options = life.rank, self._options
        while not self._is_ending:
            start = Start(addresses, self._first, len(self._lives), life.incarnation)
            program = node.program(start, rank - self._first, self._certificates)
            program.environment = {**program.environment, INCARNATION: str(life.incarnation)}
            begun = time.monotonic()
            code = await self._once(family, life, program)
            if code == 0:
                self._done.add(rank)
                return
            if self._is_ending:
                self._lost[rank] = Outcome(Kind.STOPPED, exit_code(code), rank)
                return
            outcome = _outcome(code, rank, program)
            # Of one that comes when the others are done its loss says all.
            late = self._done and _left_behind(outcome) and _NOBODY in heading(outcome.traceback)
            if not late and (outcome.kind is Kind.FAILED or not options.quiet):
                report(outcome, options, shown=program.output.shown)
            lasted_s = time.monotonic() - begun
            looping = life.repetition.loops(outcome, lasted_s)
            if looping:
                say(life.repetition.described(f"island {rank}"))
            if await self._starts_anew(life, outcome):
                continue
            self._late = self._late or self._comes_late(life, outcome, len(addresses))
            again = not looping and not self._late and self._goes_on(life, outcome)
            if options.told is not None:
                options.told(outcome, again)
            if not again:
                self._lose(outcome, rank, for_good=looping)
                return
            life.incarnation += 1
            wait_s = life.wait_s(outcome, lasted_s)
            after = f" after {wait_s:g} s, as it fails again and again" if wait_s else ""
            self._inform(f"starts island {rank} again{after}, alone ({self._budget.described(outcome.kind)})")
            await self._pause(wait_s)

    async def _pause(self, wait_s: float) -> None:
        """Waits before a start, unless the job ends."""
        end = time.monotonic() + wait_s
        while not self._is_ending and not self._done and time.monotonic() < end:
            await asyncio.sleep(_LOOK_S / 10)

    def _comes_late(self, life: Life, outcome: Outcome, count: int) -> bool:
        """True if an island that this launcher has started again finds that those of all other machines have ended.

        They are done, or their launchers end with what has become of them. Of a machine that is off nothing is known.
        """
        words = heading(outcome.traceback)
        own = {each.rank for each in self._lives}
        others = [f"island {rank} has ended" for rank in range(count) if rank not in own]
        has_trained = life.incarnation > 0 and not self._options.rejoins
        return bool(others) and has_trained and _NOBODY in words and all(each in words for each in others)

    async def _starts_anew(self, life: Life, outcome: Outcome) -> bool:
        """True if all islands have died, so that each starts as at first: the program goes on from its checkpoint."""
        # Launchers of other machines know nothing of it.
        if self._options.hosts or self._done or _NOBODY not in heading(outcome.traceback):
            return False
        self._alone.add(life.rank)
        before, end = self._rounds, time.monotonic() + _ALONE_S
        while self._rounds == before:
            if self._is_ending or self._done or time.monotonic() > end:
                self._alone.discard(life.rank)
                return False
            if {each.rank for each in self._lives} <= self._alone | self._lost.keys():
                if not self._budget.take(Kind.FAILED):
                    return False
                self._rounds += 1
                self._alone.clear()
                self._inform(f"starts all islands again, as all had died ({self._budget.described(Kind.FAILED)})")
            else:
                await asyncio.sleep(_LOOK_S / 10)
        life.incarnation = 0
        return True

    async def _once(self, family: Family, life: Life, program: Program) -> int:
        """Runs one process of an island to the end of its output; its return code."""
        try:
            # The first ones start at the same time as the spares.
            again = life.incarnation > 0
            started = (
                self._spares.start(family, life.rank, program) if again else start_rank(family, life.rank, program)
            )
            life.process, life.reader, end = started
            code = await end
            life.process = None
            await life.reader.finish(DRAIN_S)
            return code
        finally:
            life.process = None
            program.output.close()

    @property
    def _is_ending(self) -> bool:
        return self._signals.asked is not None or self._cause is not None

    def _goes_on(self, life: Life, outcome: Outcome) -> bool:
        """True if an island that has died is started again."""
        if self._done:
            # Nobody is left to join.
            return False
        return self._budget.take(outcome.kind)

    def _lose(self, outcome: Outcome, rank: int, *, for_good: bool) -> None:
        """Goes on without an island, or ends the job."""
        self._lost[rank] = outcome
        left = len(self._lives) - len(self._lost)
        few = 0 < left < self._min_islands
        # The others have gone on and are done without it, unless it has come as far as they and failed by itself then.
        own = bool(self._done) and outcome.traceback and not _left_behind(outcome)
        if for_good or few or own:
            self._cause = replace(outcome, kind=Kind.FAILED)
        if for_good or few:
            self._signals.stop()
        if few and not for_good:
            say(f"{left} of the islands {'is' if left == 1 else 'are'} left, fewer than {self._min_islands}: all end")
        elif not for_good and left:
            ended = "others are done" if self._done else "others have ended" if self._late else ""
            why = ended or self._budget.described(outcome.kind)
            if own:
                why += ", and it has failed by itself: the job counts as failed"
            goes_on = f"goes on without island {rank} ({why}); islands left: {left}"
            # Those that are done go on with nothing: where all are, this one was the last to end.
            self._inform(goes_on if left > len(self._done) else f"ends without island {rank} ({why})")

    def _inform(self, text: str) -> None:
        if not self._options.quiet:
            say(text)


def _outcome(code: int, rank: int, program: Program) -> Outcome:
    """Outcome of a process that has ended by itself."""
    if code not in _PREEMPTED:
        return failure(code, rank, program.output)
    words = "saved and asks to be started again" if code == ExitCode.RESUME else in_words(code)
    return Outcome(Kind.PREEMPTED, exit_code(code), rank, words)


def _left_behind(outcome: Outcome) -> bool:
    """True if an island has ended because the others have gone on without it, or were not there any more."""
    return heading(outcome.traceback).startswith(_LEFT)


def _islands(ranks: list[int]) -> str:
    return f"island{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
