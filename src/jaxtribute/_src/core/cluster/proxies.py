"""Connections of a cluster, which no proxy may carry."""

from __future__ import annotations

import os
from collections.abc import Iterable

from jaxtribute._src.core.cluster.addresses import Address

_PASSED_BY = "no_grpc_proxy"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def pass_by_proxies(addresses: Iterable[str]) -> None:
    """Has gRPC connect to the hosts of these addresses, and to this machine, without a proxy.

    What the environment says of other hosts stays. Call it before JAX starts its coordination service.
    """
    # gRPC reads names in small letters alone, and `no_proxy` only where `no_grpc_proxy` is empty.
    told = os.environ.get(_PASSED_BY) or os.environ.get("no_proxy") or ""
    known = [name.strip() for name in told.split(",") if name.strip()]
    hosts = [*_LOOPBACK, *(Address.parse(address).host for address in addresses)]
    os.environ[_PASSED_BY] = ",".join(dict.fromkeys([*known, *hosts]))
