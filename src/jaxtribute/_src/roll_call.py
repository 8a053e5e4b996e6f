"""The roll call of a cluster, before JAX starts: who is missing is named, and who does not fit is told.

JAX itself waits for all processes in C++, where Ctrl-C does not reach. It says nothing meanwhile. If one is missing, or
has another version or no TLS, it ends the process with a stack of C++. So the first worker listens before that, at the
address of the coordination service to come. The others call again and again, say what they run on, and hear who is
missing. Once all have called, the first worker closes its door and tells them, and JAX's service takes the address
over.

What comes from the network is a line of JSON, of which only names of versions are shown; it starts nothing.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import jax

from jaxtribute._src.core.cluster import runtime
from jaxtribute._src.core.cluster.addresses import Address, can_connect
from jaxtribute._src.core.cluster.failures import say
from jaxtribute._src.core.cluster.roster import Roster
from jaxtribute._src.core.cluster.waiting import await_workers
from jaxtribute.errors import ClusterError

_START = "for the start of the cluster"
_LONGEST = 1 << 16
_SHOWN = 80
_SPEAK_S = 1.0
"""Seconds that the first worker gives a caller to say its line: nobody else is heard meanwhile."""
_ANSWER_S = 3.0
"""Seconds that a look at who is there takes, or little more. With many more the process would seem stopped."""
_PRESENT_S = 3.0
"""Seconds after a call for which a worker counts as there, beside what the number of workers takes."""
_CALLS_PER_S = 1000
"""Calls that the first worker is to answer in a second at most, by all others together."""


def install() -> None:
    """Has every cluster that this process joins begin with a roll call."""
    runtime.before_start.append(call)


def call(roster: Roster, bind: str, timeout_s: float) -> None:
    """Waits until all workers have come, before JAX starts.

    Args:
      roster: the workers.
      bind: the address at which the first one is to listen.
      timeout_s: seconds to wait.

    Raises:
      DeadlineError: some have not come, or did not fit; it names them.
      ClusterError: this one does not fit to the first: other versions, without TLS, or a cluster of another size.
      ValueError: `bind` is not free.
    """
    if len(roster.members) < 2:
        return
    if roster.rank == 0:
        with _Door(roster, bind) as door:
            await_workers(roster, door.absent, _START, timeout_s, whereabouts=door.problems_of)
        return
    end = time.monotonic() + timeout_s
    leader = roster.members[0].address
    line = json.dumps({"rank": roster.rank, "foundation": foundation(roster)}).encode() + b"\n"
    await_workers(roster, lambda: _missing(roster, line), _START, timeout_s)
    # The door is closed: whoever listens there now is JAX's service.
    left_s = max(_ANSWER_S, end - time.monotonic())
    await_workers(roster, lambda: [] if can_connect(leader, 1.0) else [0], _START, left_s)


def foundation(roster: Roster) -> dict[str, str]:
    """Returns what must be alike on all workers, by name."""
    tls = "with" if os.environ.get("JAX_MTLS_CERT_FILE") else "without"
    return {
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "TLS": f"{tls} certificates",
        "workers": str(len(roster.members)),
    }


class _Door:
    """The address at which the first worker is called; once everybody is there, it is closed, and they are told.

    Args:
      roster: the workers.
      bind: the address.
    """

    def __init__(self, roster: Roster, bind: str) -> None:
        self._roster, self._own, self._others = roster, foundation(roster), range(1, len(roster.members))
        self._called: dict[int, float] = {}
        self._waiting: dict[int, socket.socket] = {}
        self._problems: dict[int, str] = {}
        address = Address.parse(bind)
        try:
            # By its name a machine may be known under version 6 alone.
            known = {info[0] for info in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)}
            family = socket.AF_INET if socket.AF_INET in known else socket.AF_INET6
            # Beside the launcher's socket, which keeps the address free, and before JAX's: both share it so.
            self._socket = socket.create_server(
                (address.host, address.port), family=family, backlog=1024, reuse_port=hasattr(socket, "SO_REUSEPORT")
            )
        except (OSError, OverflowError) as error:
            raise ValueError(str(error)) from error  # `connect` says what to do
        self._socket.setblocking(False)

    def __enter__(self) -> _Door:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()  # first: who is told looks for JAX's service
        for connection in self._waiting.values():
            _answer(connection, {"missing": []})

    def absent(self) -> Sequence[int]:
        """Hears who has called meanwhile; the ranks that have not."""
        end = time.monotonic() + _ANSWER_S
        for _ in self._roster.members:  # no more at a look, or strangers could keep it from the deadline
            if time.monotonic() > end:
                break
            try:
                connection, _ = self._socket.accept()
            except OSError:
                break
            self._hear(connection)
        for rank, connection in list(self._waiting.items()):
            if _is_closed(connection):
                self._waiting.pop(rank).close()
        return self._missing() or [rank for rank in self._others if rank not in self._waiting]

    def problems_of(self, ranks: Sequence[int]) -> str:
        """Says why workers that have called were sent away."""
        return "\n".join([self._problems[rank] for rank in ranks if rank in self._problems])

    def _missing(self) -> list[int]:
        since = time.monotonic() - _PRESENT_S - 2 * len(self._others) / _CALLS_PER_S
        return [
            rank for rank in self._others if rank not in self._waiting and self._called.get(rank, -math.inf) < since
        ]

    def _hear(self, connection: socket.socket) -> None:
        told = _read(connection, time.monotonic() + _SPEAK_S) or {}
        rank, theirs = told.get("rank"), told.get("foundation")
        if type(rank) is not int or rank not in self._others or not isinstance(theirs, dict):
            connection.close()  # no worker
            return
        differing = [name for name, value in self._own.items() if theirs.get(name) != value]
        if differing:
            names = self._roster.names
            others = {name: str(theirs.get(name))[:_SHOWN] for name in differing}
            lines = [
                f"  {name}: {self._own[name]} on {names[0]}, {others[name]!a} on {names[rank]}" for name in differing
            ]
            problem = (
                "the workers of this cluster do not fit together:\n" + "\n".join(lines) + "\nHINT: install the same "
                "versions and extras on all machines, and give all the same cluster and the same certificates."
            )
            _answer(connection, {"wrong": problem})
            # That worker ends. This one waits on, or whoever reaches the port could end the job before it begins.
            if self._problems.setdefault(rank, problem) is problem:
                say(problem)
            return
        self._called[rank] = time.monotonic()
        if missing := self._missing():
            _answer(connection, {"missing": missing})
            return
        if before := self._waiting.pop(rank, None):
            before.close()
        connection.setblocking(False)
        self._waiting[rank] = connection


def _missing(roster: Roster, line: bytes) -> Sequence[int]:
    """Calls the first worker with a line; who is missing, as far as it knows."""
    time.sleep(len(roster.members) / _CALLS_PER_S)
    address, end = Address.parse(roster.members[0].address), time.monotonic() + _ANSWER_S
    try:
        with socket.create_connection((address.host, address.port), timeout=_ANSWER_S) as connection:
            connection.sendall(line)
            told = _read(connection, end)
    except OSError:
        return [0]
    if told is None:
        return [0]
    if "wrong" in told:
        raise ClusterError(str(told["wrong"]))
    # Whoever does not answer so is JAX's service, of a cluster that has begun.
    missing = told.get("missing", [])
    return [rank for rank in missing if rank in range(len(roster.members))] if isinstance(missing, list) else []


def _read(connection: socket.socket, end: float) -> dict[str, Any] | None:
    """A line of JSON; empty if something else comes, None if no line does by `end`, however slowly its bytes come."""
    line = b""
    try:
        while b"\n" not in line and len(line) < _LONGEST:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return None
            connection.settimeout(left_s)
            part = connection.recv(_LONGEST)
            if not part:
                break
            line += part
        if line.startswith(b"HTTP/1"):  # a web server: neither a first worker nor JAX's service
            return None
        told = json.loads(line.partition(b"\n")[0])
    except OSError:
        return None
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _is_closed(connection: socket.socket) -> bool:
    """True if the other end has gone; who waits says nothing."""
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _answer(connection: socket.socket, message: dict[str, Any]) -> None:
    with connection:
        try:
            connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return  # it has gone, and calls again if it is there
