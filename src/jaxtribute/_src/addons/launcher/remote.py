"""Other machines of the job, as machine 0 sees them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from jaxtribute._src.addons.launcher.attempt import Kind, Outcome
from jaxtribute._src.addons.launcher.connection import LONGEST, Line, Message
from jaxtribute._src.addons.launcher.escalation import Signal
from jaxtribute._src.addons.launcher.node import Start
from jaxtribute._src.addons.launcher.terminal import say
from jaxtribute.errors import ClusterError
from jaxtribute.extending import Address, ExitCode

HELLO_S = 10.0
"""Seconds that a connection may stay silent before it says which machine it is."""
STRANGERS = 64
"""Number of connections that may be at that stage at a time, and of those that are mentioned."""
RETRY_S = 0.5


class RemoteNode:
    """A machine whose launcher has connected.

    Attributes:
      number: which machine it is.
      addresses: of its ranks for the next start; empty while it is not ready for one.
    """

    def __init__(self, number: int, line: Line) -> None:
        self.number, self.line = number, line
        self.addresses: list[str] = []
        self._outcome: asyncio.Future[Outcome] | None = None

    async def run(self, start: Start) -> Outcome:
        """Lets it start its ranks; how that ended."""
        # Those of this start: before the next one the machine reserves ports again.
        self.addresses = []
        self._outcome = asyncio.get_running_loop().create_future()
        self.line.send({"start": start.as_json()})
        return await self._outcome

    def stop(self) -> None:
        """Lets it end its ranks."""
        self.line.send({"stop": True})

    def forward(self, number: Signal) -> None:
        """Hands a signal on to its ranks."""
        self.line.send({"signal": int(number)})

    async def listen(self, on_ready: Callable[[], None]) -> None:
        """Takes what it says until the connection ends."""
        try:
            while (message := await self.line.receive()) is not None:
                if "ready" in message:
                    self.addresses = list(map(str, message["ready"]))
                    on_ready()
                elif "ended" in message:
                    self._settle(Outcome.from_json(message["ended"]))
        except (KeyError, TypeError, ValueError) as error:
            say(f"machine {self.number} said what no launcher says: {error!r}")
        self.give_up()

    def give_up(self) -> None:
        """Counts the ranks there as failed."""
        self._settle(Outcome(Kind.FAILED, ExitCode.ELSEWHERE, words=f"has lost machine {self.number}", killed=0))

    def _settle(self, outcome: Outcome) -> None:
        # The first word counts: a machine that was given up may still say how it ended.
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)


class Meeting:
    """The place where machine 0 meets the launchers of the other machines.

    Args:
      address: where it listens: the coordinator.
      nodes: how many machines the job has.
      key: what their launchers share; `None` takes whoever comes for one of them.
    """

    def __init__(self, address: Address, nodes: int, key: bytes | None = None) -> None:
        self._address, self._nodes, self._key = address, nodes, key
        self._strangers = self._refused = 0
        self.present: dict[int, RemoteNode] = {}
        self.changed = asyncio.Event()
        self.sent_away = ""
        """The one that was sent away last, and the reason; empty if there was none."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.host = ""

    async def open(self, patience_s: float) -> None:
        """Starts to listen.

        Args:
          patience_s: seconds to wait for its name: Kubernetes publishes that of a pod only once the pod runs.

        Raises:
          ClusterError: the address is not one of this machine, or taken.
        """
        end = asyncio.get_running_loop().time() + patience_s
        try:
            # One address, so that the machines all know this one by the same.
            self.host = await _look_up(self._address, end)
            self._server = await asyncio.start_server(self._meet, self.host, self._address.port, limit=LONGEST)
        except OSError as error:
            raise ClusterError(
                f"machine 0 cannot listen at {self._address}: {error}. "
                "HINT: --coordinator names an address of machine 0 and a port that is free there."
            ) from error

    @property
    def ready(self) -> dict[int, RemoteNode]:
        """The machines that have told addresses for the next start, by number and in order."""
        return {number: node for number, node in sorted(self.present.items()) if node.addresses}

    async def close(self, code: int) -> None:
        """Tells all machines how the job ended, and listens no more."""
        if self._server is not None:
            self._server.close()
        for node in self.present.values():
            node.line.send({"exit": code})
        await asyncio.gather(*(node.line.close() for node in self.present.values()))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop(self, node: RemoteNode) -> None:
        """A machine that does not answer any more."""
        node.give_up()
        if self.present.get(node.number) is node:
            del self.present[node.number]
        # Beside the rest, as closing may take long where the network is cut; kept, as the loop holds no task fast.
        task = asyncio.ensure_future(node.line.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Whoever connects and says nothing must not take all the sockets that the launcher may open.
        if self._strangers >= STRANGERS:
            writer.close()
            return
        line = Line(reader, writer, self._key)
        self._strangers += 1
        try:
            hello = await asyncio.wait_for(line.receive(), HELLO_S)
        except TimeoutError:
            hello = None
        finally:
            self._strangers -= 1
        number = None if hello is None else hello.get("machine")
        # True is an int too.
        if type(number) is not int or not 0 < number < self._nodes or number in self.present:
            await self._refuse(line, hello, number)
            return
        node = self.present[number] = RemoteNode(number, line)
        line.send({"welcome": True})
        await node.listen(self.changed.set)
        # It may have come back meanwhile, over another connection.
        if self.present.get(number) is node:
            del self.present[number]
        self.changed.set()
        await line.close()

    async def _refuse(self, line: Line, hello: Message | None, number: object) -> None:
        """Sends somebody away, and says so, though not for ever."""
        reason = f"machine {number!r} of {self._nodes} is not expected, or has come already"
        if hello is None and self._key is not None:
            reason = "it does not know the key"
        self.sent_away = f"{line.peer_host} was sent away: {reason[:200]}"
        self._refused += 1
        if self._refused <= STRANGERS:
            last = "; others will be sent away silently" if self._refused == STRANGERS else ""
            say(f"{self.sent_away}{last}")
        line.send({"refused": reason})
        await line.close()


async def _look_up(address: Address, end: float) -> str:
    """The first address that a name stands for."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            return str(found[0][4][0])
        except socket.gaierror:
            if loop.time() > end:
                raise
            await asyncio.sleep(RETRY_S)
