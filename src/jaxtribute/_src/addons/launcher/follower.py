"""The launcher of a machine other than machine 0, which tells it when to start and to stop."""

from __future__ import annotations

import asyncio
import time

from jaxtribute._src.addons.launcher.attempt import Outcome
from jaxtribute._src.addons.launcher.connection import Line, Message, connect
from jaxtribute._src.addons.launcher.escalation import Signal, stopped_code
from jaxtribute._src.addons.launcher.node import LocalNode, Start
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute._src.addons.launcher.terminal import say
from jaxtribute.errors import ClusterError, DeadlineError
from jaxtribute.extending import Address, ExitCode

SPEAK_EVERY_S = 10.0
RETRY_S = 0.2


class _UnheardError(ClusterError):
    """The error of a machine 0 that has closed the connection before it said anything."""


class Follower:
    """This machine's launcher, led by the one of machine 0."""

    def __init__(self, options: Options) -> None:
        assert options.coordinator is not None
        self._options = options
        self._address = Address.parse(options.coordinator)
        self._node: LocalNode | None = None
        self._leaving: Signal | None = None
        self._told_to_leave = asyncio.Event()

    def forward(self, number: Signal) -> None:
        """Hands a signal on to the ranks of this machine, which then leaves the job."""
        self._leaving = number
        self._told_to_leave.set()
        if self._node is not None:
            self._node.forward(number)

    def resize(self) -> None:
        """Nothing of these ranks is drawn."""

    def grow(self) -> None:
        """Machine 0 decides."""

    async def run(self) -> int:
        """Takes part until machine 0 says how the job ended; the exit code.

        If machine 0's launcher is lost, a job that may start again waits for another one, for as long as at the start.
        Where fewer workers suffice, it may be the same one, which has gone on while the network between them was cut.

        Raises:
          DeadlineError: machine 0 was not there in time.
          ClusterError: machine 0 does not want this one.
        """
        lost, losses, unheard = None, 0, None
        while True:
            line = await self._reach()
            # The address by which machine 0 is reached is one by which this machine can be.
            self._node = LocalNode(self._options, line.own_host)
            try:
                line.send({"machine": self._options.node_rank})
                code = await self._follow(line, self._node, again=losses < self._options.max_restarts)
                lost, unheard = time.monotonic(), None
                if code is None:
                    losses += 1
                    say(
                        f"machine {self._options.node_rank} lost the launcher of machine 0 and tries to come back, for "
                        f"{self._options.join_timeout_s:g} s"
                    )
            except _UnheardError:
                # Machine 0 hears few strangers at a time, and closes the connections of all others.
                unheard = unheard or time.monotonic()
                if time.monotonic() - unheard > self._options.join_timeout_s:
                    raise
                code = None
            except ClusterError:
                # Machine 0 may not have noticed yet that this machine was gone.
                if lost is None or time.monotonic() - lost > self._options.join_timeout_s:
                    raise
                code = None
            finally:
                self._node.close()
                await line.close()
            if code is not None:
                return code
            await asyncio.sleep(RETRY_S)

    async def _reach(self) -> Line:
        start = spoken = time.monotonic()
        while self._leaving is None:
            try:
                return await connect(self._address.host, self._address.port, self._options.key)
            except OSError as error:
                now = time.monotonic()
                if now - start > self._options.join_timeout_s:
                    raise DeadlineError(
                        f"machine {self._options.node_rank} waited {now - start:.0f} s for machine 0 at "
                        f"{self._address}: {error}. HINT: start `jaxtribute launch --node-rank 0` there, and see "
                        "that no firewall is between them."
                    ) from error
            if now - spoken > SPEAK_EVERY_S and not self._options.quiet:
                spoken = now
                say(f"machine {self._options.node_rank} waits for machine 0 at {self._address}")
            await asyncio.sleep(RETRY_S)
        raise SystemExit(stopped_code(self._leaving))

    async def _follow(self, line: Line, node: LocalNode, *, again: bool) -> int | None:
        """The exit code; None if machine 0 was lost, and this machine is to come back.

        Args:
          line: to machine 0.
          node: this machine.
          again: whether the job may start again with another launcher of machine 0.
        """
        running: asyncio.Task[Outcome] | None = None
        hearing = asyncio.ensure_future(line.receive())
        leaving = asyncio.ensure_future(self._told_to_leave.wait())
        line.send({"ready": node.reserve()})
        try:
            while True:
                # Told to leave, the ranks end first, if there are any.
                await asyncio.wait([hearing, running or leaving], return_when=asyncio.FIRST_COMPLETED)
                if running is None and self._leaving is not None:
                    return stopped_code(self._leaving)
                if hearing.done():
                    message = hearing.result()
                    if message is None:
                        return await self._orphaned(line, node, running, again=again)
                    if "exit" in message:
                        return int(message["exit"])
                    running = self._obey(node, message) or running
                    hearing = asyncio.ensure_future(line.receive())
                if running is not None and running.done():
                    outcome, running = running.result(), None
                    line.send({"ended": outcome.as_json()})
                    if self._leaving is not None:
                        return outcome.code
                    # With other ports: processes that are left of this start may hold the old ones.
                    line.send({"ready": node.reserve()})
        finally:
            hearing.cancel()
            leaving.cancel()
            if running is not None:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    def _obey(self, node: LocalNode, message: Message) -> asyncio.Task[Outcome] | None:
        if "welcome" in message:
            return None
        if "refused" in message:
            raise ClusterError(
                f"machine 0 at {self._address} refused this one: {message['refused']}. "
                "HINT: each machine has a --node-rank of its own, below --nodes."
            )
        if "start" in message:
            return asyncio.ensure_future(node.run(Start.from_json(message["start"])))
        if "signal" in message:
            node.forward(Signal(message["signal"]))
        else:
            node.stop()
        return None

    async def _orphaned(
        self, line: Line, node: LocalNode, running: asyncio.Task[Outcome] | None, *, again: bool
    ) -> int | None:
        # Nobody would tell these ranks any more that others have failed, and they might wait for ever.
        if running is not None:
            node.stop()
            await running
        if line.silent:
            raise _UnheardError(
                f"machine 0 at {self._address} closed each connection without a word for "
                f"{self._options.join_timeout_s:g} s. HINT: see that a launcher of this job listens there, and that no "
                "strangers take its connections: it says whom it has sent away."
            )
        # Other words than a launcher's: a stranger listens there, or the keys differ. To come back would be in vain.
        if not line.heard:
            raise ClusterError(
                f"machine 0 at {self._address} did not answer as a launcher of this job. HINT: see what it says, and "
                "give the same --key on all machines, or on none."
            )
        if (again or self._options.min_workers is not None) and self._leaving is None:
            return None
        say(f"machine {self._options.node_rank} lost the launcher of machine 0 at {self._address} and ends")
        return ExitCode.ELSEWHERE
