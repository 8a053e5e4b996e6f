"""What tells a process of a job who it is: `TF_CONFIG` and a few variables of the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from jaxtribute.config import CPU_DEVICES

TF_CONFIG = "TF_CONFIG"
LAUNCHER = "JAXTRIBUTE_LAUNCHER"
"""Set to 1 in a process that the launcher, or the runner of `jd.testing`, has started."""
PLATFORMS = "JAX_PLATFORMS"


def rank_environment(
    addresses: Sequence[str], index: int, devices: int | None = None, inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The whole environment of one process.

    Args:
        addresses: `host:port` of every worker, by rank.
        index: The rank of the process.
        devices: The number of its logical CPU devices. JAX then leaves accelerators alone, unless `JAX_PLATFORMS` says
            otherwise. `None` leaves its devices as they are.
        inherited: What it is made from; this process's environment by default.
    """
    found = dict(os.environ if inherited is None else inherited)
    task = {"type": "worker", "index": index}
    found[TF_CONFIG] = json.dumps({"cluster": {"worker": list(addresses)}, "task": task})
    found[LAUNCHER] = "1"
    if devices is not None:
        found[CPU_DEVICES] = str(devices)
        found.setdefault(PLATFORMS, "cpu")
    return found


def rank_of_this_process(environment: Mapping[str, str] | None = None) -> int:
    """The rank that `TF_CONFIG` gives this process: the chief first, then the workers; 0 where there is none."""
    try:
        described = json.loads((os.environ if environment is None else environment)[TF_CONFIG])
        kind, index = described["task"]["type"], int(described["task"]["index"])
        return index + len(described["cluster"].get("chief", ())) if kind == "worker" else index
    except (KeyError, TypeError, ValueError):
        return 0
