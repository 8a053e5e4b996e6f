"""Cluster resolvers, one file each. A file here that registers its class is found; add-ons have more."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeVar

from jaxtribute._src.core.cluster.resolvers.base import ClusterResolver, Detection
from jaxtribute._src.core.points import RESOLVERS

__all__ = ["detect", "from_environment", "known", "register"]

_R = TypeVar("_R", bound=type[ClusterResolver])


def register(rank: int) -> Callable[[_R], _R]:
    """A decorator that lets `detect` ask a resolver's class; those of a lower rank are asked first."""

    def add(cls: _R) -> _R:
        RESOLVERS.register((rank, cls))
        return cls

    return add


# At the first question and not at the import: the files import this package in turn.
@cache
def _load() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def known() -> list[type[ClusterResolver]]:
    """The resolvers that `detect` asks, in order."""
    _load()
    return [cls for _, cls in sorted(RESOLVERS.entries(), key=lambda entry: entry[0])]


def detect(environ: Mapping[str, str] | None = None) -> Detection | None:
    """The resolver that fits the environment, and why; None if nothing says that there is a cluster.

    Args:
      environ: environment variables; this process's own by default.

    Raises:
      ClusterSpecError: the environment describes a cluster, and does so incompletely or wrongly.
    """
    environ = os.environ if environ is None else environ
    for cls in known():
        detection = cls.detect(environ)
        if detection is not None:
            return detection
    return None


def from_environment() -> ClusterResolver:
    """The resolver of a strategy that is given none: `TF_CONFIG`'s if it is set, else the one that `detect` finds.

    Without one, and for a cluster of a single task, it is a resolver of no cluster.

    Raises:
      ClusterSpecError: the environment describes a cluster, and does so incompletely or wrongly.
      ClusterError: the system that runs the cluster does not say.
    """
    from jaxtribute._src.core.cluster.resolvers.tf_config import TFConfigClusterResolver

    detection = detect()
    if detection is not None and not isinstance(detection.resolver, TFConfigClusterResolver):
        # Surroundings of a single task, such as a shell of Slurm's, are no cluster: two would want the same port.
        spec = detection.resolver.cluster_spec()
        if sum(map(spec.num_tasks, spec.jobs)) > 1:
            return detection.resolver
    return TFConfigClusterResolver()
