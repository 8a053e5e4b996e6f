"""Checks that the workers can reach each other."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from jaxtribute._src.cluster.addresses import Address
from jaxtribute._src.cluster.runtime import BIND
from jaxtribute._src.tools.doctor.findings import Finding, Level
from jaxtribute._src.tools.doctor.situation import Situation

TIMEOUT_S = 3.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")


def check(situation: Situation) -> Iterator[Finding]:
    """Looks at the coordinator's port, this machine's own address, and proxies."""
    roster = situation.roster
    if roster is None or len(roster.members) < 2:
        return
    own, leader = Address.parse(roster.own.address), Address.parse(roster.members[0].address)
    if roster.rank == 0:
        yield _can_listen(situation, leader)
    else:
        yield _can_reach(leader, str(roster.members[0]))
        yield from _is_own(own)
    if not (own.is_loopback() and leader.is_loopback()):
        yield from _proxies(situation)


def _can_listen(situation: Situation, address: Address) -> Finding:
    bind = situation.environ.get(BIND)
    where = Address.parse(bind) if bind else address
    try:
        family = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family[0], family[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as the coordination service does
            probe.bind(family[4])
    except OSError as error:
        return Finding(
            Level.ERROR,
            "coordinator",
            f"this process is to listen at {where}, and cannot: {error}",
            "free that port, or choose another; where the cluster knows this machine by an address that it has not "
            f"itself (behind NAT), set {BIND}=host:port.",
        )
    return Finding(Level.GOOD, "coordinator", f"this process can listen at {where}")


def _can_reach(address: Address, name: str) -> Finding:
    try:
        with socket.create_connection((address.host, address.port), timeout=TIMEOUT_S):
            return Finding(Level.GOOD, "coordinator", f"{name} answers")
    except ConnectionRefusedError:
        return Finding(
            Level.WARNING,
            "coordinator",
            f"the machine of {name} answers, and nothing listens at that port yet",
            "start worker 0; it listens once its program makes the strategy.",
        )
    except socket.gaierror as error:
        fix = "use a name that every machine can look up, or its IP address."
        return Finding(Level.ERROR, "coordinator", f"the name {address.host!r} of {name} is not known: {error}", fix)
    except OSError as error:
        fix = "see that the machine runs, and that no firewall is between: all ports between workers must be open."
        return Finding(Level.ERROR, "coordinator", f"{name} cannot be reached: {error}", fix)


def _is_own(address: Address) -> Iterator[Finding]:
    """Collectives listen on this machine's address in the spec."""
    try:
        family = socket.getaddrinfo(address.host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family[0], family[1]) as probe:
            probe.bind(family[4])
    except OSError as error:
        fix = "let the cluster name this machine by an address that it has."
        yield Finding(Level.ERROR, "own address", f"{address.host!r} is none of this machine: {error}", fix)


def _proxies(situation: Situation) -> Iterator[Finding]:
    found = [name for name in situation.environ if name.lower() in _PROXIES and situation.environ[name]]
    if found:
        yield Finding(
            Level.WARNING,
            "proxies",
            f"{', '.join(sorted(found))}: connections between workers may go through a proxy, and hang",
            "unset them for training, or put the workers' hosts into no_proxy.",
        )
