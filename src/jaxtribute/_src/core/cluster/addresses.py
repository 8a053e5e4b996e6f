"""The network address of a task, `"host:port"`: taken apart, and tried."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from jaxtribute._src.core.environment import shown, whole_number
from jaxtribute.errors import ClusterSpecError


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port.

    Attributes:
      host: a name, or an IP address without brackets.
      port: 0 to 65535; 0 if the system is to choose one.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads an address, with or without a protocol before it (`grpc://`).

        Raises:
          ClusterSpecError: it has no host, or no port from 0 to 65535.
        """
        # From the right: an IPv6 address has colons of its own.
        host, _, port = text.rpartition("://")[2].rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not bare or (number := whole_number(port)) is None or number > 65535:
            raise ClusterSpecError(
                f"{shown(text)} is no address of a task. HINT: write host:port, such as '10.0.0.2:2222' or "
                "'[::1]:2222'."
            )
        return cls(bare, number)

    def is_loopback(self) -> bool:
        """True if only this machine can reach it: `localhost`, 127.0.0.0/8 or ::1. Asks no name server."""
        if self.host.lower().rstrip(".") == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def all_loopback(addresses: Iterable[str]) -> bool:
    """True if no other machine can reach any of the addresses.

    Raises:
      ClusterSpecError: one is malformed.
    """
    return all(Address.parse(address).is_loopback() for address in addresses)


def can_connect(address: str, timeout_s: float) -> bool:
    """True if something listens at an address; waits at most `timeout_s` for an answer."""
    where = Address.parse(address)
    try:
        with socket.create_connection((where.host, where.port), timeout=timeout_s):
            return True
    except OSError:
        return False
