"""Lists the versions that are installed."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from jaxtribute._src.tools.doctor.findings import Finding, Level
from jaxtribute._src.tools.doctor.situation import Situation

_NEEDED = ("jaxtribute", "jax", "jaxlib", "numpy", "optax", "grain", "orbax-checkpoint")
_OPTIONAL = ("jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu", "keras", "flax", "ray", "cloudpickle", "kubernetes")


def check(_: Situation) -> Iterator[Finding]:
    """Lists them."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Finding(Level.FACT, "system", system)
    found = {name: _version(name) for name in (*_NEEDED, *_OPTIONAL)}
    yield Finding(Level.FACT, "versions", ", ".join(f"{name} {number}" for name, number in found.items() if number))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
