"""Connections of a cluster, which no proxy may carry."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, cast

import jax

from jaxtribute._src.core.cluster import runtime
from jaxtribute._src.core.cluster.addresses import Address
from jaxtribute._src.core.cluster.roster import Roster

_PASSED_BY = "no_grpc_proxy"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def install() -> None:
    """Has the processes of each cluster connect without proxies."""
    runtime.before_start.append(_pass_by)


def _pass_by(roster: Roster, bind: str, timeout_s: float) -> None:
    del bind, timeout_s
    # A proxy reaches no machine of the job, and if it is dead JAX waits for minutes and aborts.
    pass_by_proxies(member.address for member in roster.members)
    # JAX's warning of proxies is of no use any more.
    cast(Any, jax.config).update("jax_check_proxy_envs", False)


def pass_by_proxies(addresses: Iterable[str]) -> None:
    """Has gRPC connect to the hosts of these addresses, and to this machine, without a proxy.

    What the environment says of other hosts stays. Call it before JAX starts its coordination service.
    """
    # gRPC reads names in small letters alone, and `no_proxy` only where `no_grpc_proxy` is empty.
    told = os.environ.get(_PASSED_BY) or os.environ.get("no_proxy") or ""
    known = [name.strip() for name in told.split(",") if name.strip()]
    hosts = [*_LOOPBACK, *(Address.parse(address).host for address in addresses)]
    os.environ[_PASSED_BY] = ",".join(dict.fromkeys([*known, *hosts]))
