"""The launcher of machine 0, or of the only one: it starts the job, starts it again, and says how it ended."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Protocol

from jaxtribute._src.addons.launcher.attempt import CAUSE_S, Kind, Outcome, Repetition
from jaxtribute._src.addons.launcher.certificates import open_to_others
from jaxtribute._src.addons.launcher.escalation import ABORTED, Signal, stopped_code
from jaxtribute._src.addons.launcher.node import LOOPBACK, LocalNode, Start
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute._src.addons.launcher.remote import Meeting, RemoteNode
from jaxtribute._src.addons.launcher.terminal import say
from jaxtribute.errors import DeadlineError
from jaxtribute.extending import Address, ExitCode, Kinds

SPEAK_EVERY_S = 10.0
LOOK_EVERY_S = 0.2
REJOIN_S = 10.0
"""Seconds to wait for lost machines where the others suffice."""
ANSWER_S = 10.0
"""Additional seconds, beyond its own ranks' need, for a machine to say that they have ended."""


class Node(Protocol):
    """A machine of the job, or a worker that Ray has placed."""

    async def run(self, start: Start) -> Outcome:
        """Starts its ranks and waits until they have ended."""
        ...

    def stop(self) -> None:
        """Ends them because of a failure elsewhere."""

    def forward(self, number: Signal) -> None:
        """Hands a signal on to them."""


class Leader:
    """The launcher that decides."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._meeting: Meeting | None = None
        self._local: LocalNode | None = None
        self._running: list[Node] = []
        self._asked: Signal | None = None
        self._growing = False
        self._workers = options.workers
        """Of this machine, for the next start."""

    def forward(self, number: Signal) -> None:
        """Hands a signal on: Ctrl-C to the ranks of all machines, others to those of this one. The job ends then."""
        self._asked = number
        # SIGTERM comes to a machine that is taken away: its ranks tell all others, which then save as well.
        nodes = self._running if number is Signal.SIGINT else self._running[:1]
        for node in nodes:
            node.forward(number)

    def resize(self) -> None:
        """Passes on that the terminal has another size."""
        if self._local is not None:
            self._local.resize()

    def grow(self) -> None:
        """Lets the ranks save and end, to start again with all workers."""
        self._workers = self._options.workers
        if self._running and not self._growing and self._asked is None:
            self._growing = True
            for node in self._running:
                node.forward(Signal.SIGTERM)

    async def run(self) -> int:
        """Runs the job to its end; the exit code.

        Raises:
          DeadlineError: machines did not come in time.
          ClusterError: the coordinator's address is not free, or none of this machine's.
        """
        code = ExitCode.ELSEWHERE
        host = LOOPBACK
        if self._options.nodes > 1:
            assert self._options.coordinator is not None
            self._meeting = Meeting(Address.parse(self._options.coordinator), self._options.nodes, self._options.key)
            await self._meeting.open(self._options.join_timeout_s)
            host = self._meeting.host
        self._local = LocalNode(self._options, host)
        if (unsafe := open_to_others(self._options)) is not None:
            self._inform(unsafe)
        try:
            code = await self._supervise()
        finally:
            self._local.close()
            if self._meeting is not None:
                # The other launchers wait for the exit code, and end with it.
                await self._meeting.close(code)
        return code

    async def _supervise(self) -> int:
        restart, failures, preemptions, repetition = 0, 0, 0, Repetition()
        while True:
            nodes, addresses = await self._gather(again=restart > 0)
            if self._asked is not None:
                return stopped_code(self._asked)
            begun = time.monotonic()
            outcome = await self._attempt(nodes, addresses, restart)
            if outcome.kind is Kind.DONE:
                return 0
            local = outcome.rank is not None and outcome.rank < self._workers
            if outcome.kind is Kind.FAILED or not self._options.quiet:
                report(outcome, self._options, shown=local and (outcome.rank == 0 or not self._options.split))
            if self._asked is not None:
                return outcome.code
            # Machines that are taken away and given back may be many; failures are a budget of their own.
            preempted = outcome.kind is Kind.PREEMPTED
            if not self._growing:
                failures, preemptions = failures + (not preempted), preemptions + preempted
                if failures < self._options.max_restarts and repetition.loops(outcome, time.monotonic() - begun):
                    say(repetition.described("the job"))
                    return outcome.code
            used, most, what = failures, self._options.max_restarts, "restarts"
            if preempted:
                used, most, what = preemptions, self._options.preemptions, "preemptions"
            if used > most:
                if most:
                    self._inform(f"does not start the job again: no more than {most} {what} are allowed")
                return outcome.code
            if not self._growing:
                self._shrink(outcome)
            self._growing = False
            restart += 1
            self._inform(f"starts the job again ({used} of {most} {what})")

    def _inform(self, text: str) -> None:
        if not self._options.quiet:
            say(text)

    def _shrink(self, outcome: Outcome) -> None:
        """Leaves out the workers that something killed, where fewer suffice; the start after that has them again."""
        full, enough = self._options.workers, self._options.min_workers
        self._workers = full
        if enough is not None and self._options.nodes == 1:
            self._workers = min(full, max(enough, full - outcome.killed))

    async def _gather(self, *, again: bool) -> tuple[list[Node], list[list[str]]]:
        """The machines that start, in order, and the addresses of their ranks."""
        assert self._local is not None
        self._local.workers = self._workers
        own = self._local.reserve()
        if self._meeting is None:
            return [self._local], [own]
        await self._await_machines(self._meeting, len(own), again=again)
        # This machine first: rank 0, which hosts the coordination service, is at the address that all know.
        remote = list(self._meeting.ready.values())
        return [self._local, *remote], [own, *map(attrgetter("addresses"), remote)]

    async def _await_machines(self, meeting: Meeting, own: int, *, again: bool) -> None:
        start = spoken = time.monotonic()
        while self._asked is None:
            ready = meeting.ready
            missing = sorted(set(range(1, self._options.nodes)).difference(ready))
            if not missing:
                return
            workers = own + sum(len(node.addresses) for node in ready.values())
            enough = self._options.min_workers is not None and workers >= self._options.min_workers
            waited = time.monotonic() - start
            # At a restart those that are missing were just lost, and may never come back.
            if enough and waited > (REJOIN_S if again else self._options.join_timeout_s):
                self._inform(f"goes on with {workers} worker(s), without {_machines(missing)}")
                return
            if waited > self._options.join_timeout_s:
                others = f"; {meeting.sent_away}" if meeting.sent_away else ""
                raise DeadlineError(
                    f"machine 0 waited {waited:.0f} s at {self._options.coordinator} for {_machines(missing)}{others}. "
                    "HINT: start `jaxtribute launch` there with the same --nodes, --coordinator and --key, or give "
                    "--min-workers."
                )
            if time.monotonic() - spoken > SPEAK_EVERY_S:
                spoken = time.monotonic()
                self._inform(f"waits at {self._options.coordinator} for {_machines(missing)}")
            await _changed(meeting.changed, LOOK_EVERY_S)

    async def _attempt(self, nodes: Sequence[Node], addresses: Sequence[Sequence[str]], restart: int) -> Outcome:
        everyone = list(chain.from_iterable(addresses))
        tasks: dict[asyncio.Task[Outcome], Node] = {}
        first, run = 0, secrets.token_hex(16)
        for node, own in zip(nodes, addresses, strict=True):
            # Another number for each start: a process that is left of the last one has no certificate of this one.
            start = Start(everyone, first, len(own), restart, run)
            tasks[asyncio.ensure_future(node.run(start))] = node
            first += len(own)
        self._running = list(nodes)
        watch = asyncio.ensure_future(self._watch_for_more(len(nodes)))
        try:
            with Kinds.ATTEMPT.during(self, str(restart), len(everyone), len(nodes)) as attempt:
                found = await self._outcomes(tasks)
                outcome = worst(found)
                if self._asked is Signal.SIGTERM and outcome.code in (ExitCode.ELSEWHERE, *ABORTED):
                    # Other machines have only seen that the ranks of this one end, the coordinator among them.
                    outcome = next((one for one in found if one.code == ExitCode.RESUME), outcome)
                attempt.result = outcome
            return outcome
        finally:
            watch.cancel()
            self._running = []

    async def _outcomes(self, tasks: dict[asyncio.Task[Outcome], Node]) -> list[Outcome]:
        """Outcomes of the machines, in the order of their ends; the first bad one stops the others."""
        found: list[Outcome] = []
        stop_at = give_up_at = float("inf")
        while tasks:
            until = min(stop_at, give_up_at) - time.monotonic()
            timeout = None if until == float("inf") else max(until, 0)
            done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                found.append(task.result())
                del tasks[task]
                # The first bad end decides when the others are stopped; a machine that does not even answer then, as
                # the network is cut, is given up, so that the job can end or start without it.
                if found[-1].kind is not Kind.DONE and give_up_at == float("inf"):
                    stop_at = time.monotonic() + self._patience(found[-1])
                    give_up_at = stop_at + self._options.grace_s + ANSWER_S
            if time.monotonic() >= stop_at:
                stop_at = float("inf")
                for node in tasks.values():
                    node.stop()
            if time.monotonic() >= give_up_at:
                for node in tasks.values():
                    self._give_up(node)
                give_up_at = float("inf")
        return found

    def _give_up(self, node: Node) -> None:
        """Counts a machine that does not answer as failed."""
        if isinstance(node, RemoteNode) and self._meeting is not None:
            self._meeting.drop(node)

    def _patience(self, outcome: Outcome) -> float:
        """Seconds that the other machines may go on after this end of one."""
        if outcome.kind is Kind.PREEMPTED:
            return self._options.save_s
        return CAUSE_S if outcome.code == ExitCode.ELSEWHERE else 0.0

    async def _watch_for_more(self, present: int) -> None:
        """While machines are missing, lets the job start again as soon as one more is ready."""
        if self._meeting is None or present == self._options.nodes:
            return
        while not self._meeting.ready:
            await _changed(self._meeting.changed, LOOK_EVERY_S)
        self._inform("one more machine is there: the job saves and starts again with it")
        self.grow()


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of several machines: the failure that was the cause, a preemption, or a good end."""

    def order(outcome: Outcome) -> int:
        if outcome.kind is Kind.FAILED:
            return 0 if outcome.code != ExitCode.ELSEWHERE else 1
        return {Kind.PREEMPTED: 2, Kind.STOPPED: 3, Kind.DONE: 4}[outcome.kind]

    return min(outcomes, key=order)


def report(outcome: Outcome, options: Options, *, shown: bool) -> None:
    """Says why the job ended. A traceback that this terminal has shown is not shown again."""
    who = "the job" if outcome.rank is None else f"rank {outcome.rank}"
    if outcome.kind is Kind.STOPPED:
        why = f": {outcome.words}. It may be started again" if outcome.words else ""
        say(f"the job was stopped{why} (exit code {outcome.code})")
        return
    if outcome.traceback and not shown:
        say(f"the traceback of {who}:\n{outcome.traceback}")
    where = f"its output is in {options.log_dir}/rank-{outcome.rank}.log"
    if not options.log_dir or outcome.rank is None or not outcome.words:
        say(f"{who} {outcome.words or 'was preempted'}")
    elif "\n" in outcome.words:  # a message of several lines, the last of which is a sentence of its own
        say(f"{who} {outcome.words}\n({where})")
    else:
        say(f"{who} {outcome.words}; {where}")


def _machines(numbers: Sequence[int]) -> str:
    return f"machine{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


async def _changed(event: asyncio.Event, timeout_s: float) -> None:
    event.clear()
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
