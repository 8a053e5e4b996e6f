"""Reading and changing what the servers hold, in as few requests as there are servers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from jaxtribute._src.addons.messaging.transport import Endpoint, Keys, Link, deadline
from jaxtribute._src.addons.messaging.wire import Header, pack, unpack
from jaxtribute._src.addons.parameter_servers.server.layout import Layout, Shard
from jaxtribute._src.addons.parameter_servers.server.staleness import Staleness
from jaxtribute.errors import ClusterError, DeadlineError
from jaxtribute.typing import ArrayLike

Request = tuple[Header, list[Any]]
MOVE = "move"
"""Kind of an operation that takes a variable from a value that was read to another."""
_POLL_S = 0.05


class ServerLostError(ClusterError):
    """A server does not hold the state that was meant: it was restarted, or the cluster's state was restored."""


class Client:
    """One thread's, or with its lock one process's, connections to the servers.

    Args:
      keys: the cluster's keys.
      timeout_s: how long a request may take.
      check: called while an answer is waited for; raises what ends the wait.
    """

    check: Callable[[], None]
    sent_bytes: int
    received_bytes: int

    def __init__(self, keys: Keys | None, timeout_s: float, check: Callable[[], None] = lambda: None) -> None:
        self._keys, self._timeout_s, self.check = keys, timeout_s, check
        self._links: list[Link] = []
        self._closed = False
        self._numbers = itertools.count(1)
        self.epoch: int = 0
        self.lock: AbstractContextManager[bool] = threading.RLock()
        self.known: dict[int, tuple[int, Any]] = {}
        """The last version of each shard that was pulled."""
        self.sent_bytes = self.received_bytes = self.pushes = 0
        self.staleness: Staleness = Staleness()

    def another(self) -> Client:
        """A client of the same cluster, with connections and a lock of its own."""
        return Client(self._keys, self._timeout_s)

    def connect(self, servers: Sequence[Endpoint], epoch: int) -> None:
        """Takes the servers' addresses; forgets what was pulled if their state is another."""
        with self.lock:
            # Versions are counted within an epoch: after a restore an old version may name another value.
            if epoch != self.epoch:
                self.known.clear()
            self.epoch = epoch
            kept = {link.endpoint: link for link in self._links}
            self._links = [kept.pop(server, None) or Link(server, self._keys) for server in servers]
            for link in kept.values():
                link.close()

    def close(self) -> None:
        """Closes all connections."""
        with self.lock:
            for link in self._links:
                link.close()
            self._links, self._closed = [], True

    def check_open(self, servers: Iterable[int]) -> None:
        """Checks that the cluster has not been closed.

        Args:
          servers: whom something is to be asked of.

        Raises:
          ClusterError: it has.
        """
        if self._closed:
            raise ClusterError(
                f"parameter servers {sorted(servers)} were asked after their cluster was closed, and what they held is "
                "gone. HINT: read variables before strategy.close() or the end of its `with` block; "
                "coordinator.save() and jd.Checkpoint keep what is to outlive it."
            )

    def call(self, requests: dict[int, Request]) -> dict[int, tuple[Header, list[Any]]]:
        """Sends a request to each of some servers and waits for all answers.

        Raises:
          ServerLostError: a server has lost its state.
          DeadlineError: a server does not answer; the message names it.
          ClusterError: a server could not do what was asked, or the cluster has been closed.
        """
        with self.lock:
            self.check_open(requests)
            waiting: dict[int, int] = {}
            for server, (header, arrays) in requests.items():
                number = next(self._numbers)
                frames = pack({"n": number, "e": self.epoch, **header}, arrays)
                self.sent_bytes += sum(memoryview(frame).nbytes for frame in frames)
                waiting[server] = number
                self._links[server].send(frames)
            return self._collect(waiting)

    def _collect(self, waiting: dict[int, int]) -> dict[int, tuple[Header, list[Any]]]:
        answers: dict[int, tuple[Header, list[Any]]] = {}
        left = deadline(self._timeout_s)
        links = dict(enumerate(self._links))
        while len(answers) < len(waiting):
            for server in [server for server in waiting if server not in answers]:
                frames = links[server].receive(_POLL_S)
                if frames is None:
                    self._check_wait(server, left)
                    continue
                self.received_bytes += sum(len(frame) for frame in frames)
                header, arrays = unpack(frames)
                if header["n"] == waiting[server]:  # else an answer that an earlier wait gave up
                    answers[server] = _checked(server, header), arrays
        return answers

    def _check_wait(self, server: int, left: Callable[[], float]) -> None:
        self.check()
        if not left():
            raise DeadlineError(
                f"parameter server {server} has not answered for {self._timeout_s} s. "
                "HINT: is its process alive? ParameterServerStrategy(timeout_s=...) waits longer."
            )


def _checked(server: int, header: Header) -> Header:
    if "lost" in header:
        raise ServerLostError(
            f"parameter server {server} has lost its variables. HINT: coordinator.restore() brings back what "
            "coordinator.save() kept last."
        )
    if "error" in header:
        raise ClusterError(f"parameter server {server} could not do what was asked: {header['error']}")
    return header


class Exchange:
    """One batched request to each server that it concerns: operations first, then what is read.

    Args:
      client: how the servers are reached.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ops: dict[int, list[Any]] = {}
        self._op_arrays: dict[int, list[Any]] = {}
        self._pulls: dict[int, dict[int, int]] = {}
        self._rows: dict[int, list[int]] = {}
        self._row_ids: dict[int, list[Any]] = {}

    def operation(self, server: int, op: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Adds an operation, `[kind, key or id, number of arrays, ...]`."""
        self._ops.setdefault(server, []).append(op)
        self._op_arrays.setdefault(server, []).extend(arrays)

    def dense(self, kind: str, layout: Layout, *values: ArrayLike) -> None:
        """Adds an operation on a whole variable."""
        # Copies of one value, such as a step count beside the variables of each server, are all written.
        cuts = [list(layout.pieces(np.asarray(value))) for value in values]
        for place, shard in enumerate(layout.shards):
            self.operation(shard.server, [kind, shard.key, len(cuts)], [cut[place][1] for cut in cuts])

    def scattered(self, kind: str, layout: Layout, ids: ArrayLike, rows: ArrayLike) -> None:
        """Adds an operation on some rows of a variable; ids that name none are left out."""
        where, values = np.asarray(ids), np.asarray(rows)
        for shard, mask in layout.rows(where):
            local = where[mask] - (shard.start if layout.split else 0)
            self.operation(shard.server, [kind, shard.key, 2], [local.astype(np.int32), values[mask]])

    def pull(self, layout: Layout) -> None:
        """Asks for a variable's value."""
        # Of copies one will do: they are written together.
        for shard in layout.shards if layout.split else layout.shards[:1]:
            known = self._client.known.get(shard.key)
            self._pulls.setdefault(shard.server, {})[shard.key] = known[0] if known else 0

    def gather(self, shard: Shard, ids: ArrayLike) -> int:
        """Asks for some rows of a shard; returns the place of the answer among the server's."""
        self._rows.setdefault(shard.server, []).append(shard.key)
        self._row_ids.setdefault(shard.server, []).append(np.asarray(ids, np.int32))
        return len(self._rows[shard.server]) - 1

    def run(self, header: Header | None = None) -> dict[int, list[Any]]:
        """Does it; values that were pulled are in the client's `known`. Returns the rows that each server gave.

        Args:
          header: what goes with the operations, such as which push of which closure they are.
        """
        servers = sorted({*self._ops, *self._pulls, *self._rows})
        requests: dict[int, Request] = {}
        for server in servers:
            pulls = [[key, version] for key, version in self._pulls.get(server, {}).items()]
            fields: Header = {"t": "exchange", "pull": pulls, "rows": self._rows.get(server, [])}
            if server in self._ops:
                fields |= {"ops": self._ops[server], **(header or {})}
            requests[server] = fields, [*self._op_arrays.get(server, ()), *self._row_ids.get(server, ())]
        rows: dict[int, list[Any]] = {}
        answers = self._client.call(requests)
        self._note(answers)
        for server, (answer, arrays) in answers.items():
            given = iter(arrays)
            for (key, known), version in zip(self._pulls.get(server, {}).items(), answer["v"], strict=True):
                if version != known:
                    # Arrays come only for versions that are new: what has not changed since the last pull does not
                    # travel.
                    self._client.known[key] = version, next(given)
            rows[server] = list(given)
        return rows

    def _note(self, answers: dict[int, tuple[Header, list[Any]]]) -> None:
        """Counts pushes, and how stale the values of the last pull have been."""
        staleness, again, most = self._client.staleness, False, 0
        for server, operations in self._ops.items():
            staleness.changed(server, operations)
        self._client.pushes += bool(self._ops)
        for server, pulls in self._pulls.items():
            told = [(key, known, now) for (key, known), now in zip(pulls.items(), answers[server][0]["v"], strict=True)]
            again = again or any(pulls.values())
            most = max(most, staleness.pulled(server, told))
        if again:
            staleness.note(most)

    @property
    def changes(self) -> bool:
        """True if it changes what the servers hold."""
        return bool(self._ops)

    @property
    def empty(self) -> bool:
        """True if there is nothing to ask."""
        return not (self._ops or self._pulls or self._rows)


def pulled(client: Client, layout: Layout) -> Any:
    """A variable's value that the client has pulled."""
    shards = layout.shards if layout.split else layout.shards[:1]
    return layout.join([client.known[shard.key][1] for shard in shards])
