"""`jaxtribute doctor`: what is installed, what is found, what is wrong with it, and how to put it right."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jaxtribute._src.tools.doctor import cluster, devices, network, versions
from jaxtribute._src.tools.doctor.findings import Finding
from jaxtribute._src.tools.doctor.situation import Situation

CHECKS: tuple[Callable[[Situation], Iterable[Finding]], ...] = (
    versions.check,
    cluster.check,
    network.check,
    devices.check,  # starts JAX, so it comes after whatever must come before
)
"""The checks, in the order of the report."""
