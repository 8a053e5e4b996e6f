"""Settings that tell a process of a job who it is: `TF_CONFIG` and a few variables of the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from jaxtribute.extending import parse_json, task_number

TF_CONFIG = "TF_CONFIG"
LAUNCHER = "JAXTRIBUTE_LAUNCHER"
"""Set to 1 in a process that the launcher, or the runner of `jd.testing`, has started."""
RESTART = "JAXTRIBUTE_RESTART"
"""Number of restarts of the job, for its processes."""
INCARNATION = "JAXTRIBUTE_INCARNATION"
"""Number of earlier processes of an island: it alone has been started again, while the others have gone on."""
SPARE = "JAXTRIBUTE_SPARE"
"""Number of the file from which a spare process reads which island it is."""
RUN = "JAXTRIBUTE_RUN"
"""The folder in which a process records what it does."""
PLATFORMS = "JAX_PLATFORMS"
LOCAL_CLUSTER = "JAXTRIBUTE_LOCAL_CLUSTER"
"""Set to 1 where the chief starts all other tasks of its cluster on this machine."""


def tf_config(cluster: Mapping[str, object], task_type: str | None, index: int | None) -> str:
    """The value of `TF_CONFIG` for a task.

    Args:
      cluster: the addresses of each job.
      task_type: the task's job.
      index: its index there.
    """
    return json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})


def rank_environment(
    addresses: Sequence[str], index: int, devices: int | None = None, inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The whole environment of one process.

    Args:
      addresses: `host:port` of every worker, by rank.
      index: the rank of the process.
      devices: the number of its logical CPU devices. JAX then leaves accelerators alone, unless `JAX_PLATFORMS` says
        otherwise. `None` leaves its devices as they are.
      inherited: what it is made from; this process's environment by default.
    """
    found = dict(os.environ if inherited is None else inherited)
    found[TF_CONFIG] = tf_config({"worker": list(addresses)}, "worker", index)
    found[LAUNCHER] = "1"
    if devices is not None:
        found["JAXTRIBUTE_CPU_DEVICES"] = str(devices)
        found.setdefault(PLATFORMS, "cpu")
    return found


def chief_environment(address: str, servers: int, workers: int) -> dict[str, str]:
    """Settings that tell a process that it is the chief of servers and workers, which it starts on this machine.

    Args:
      address: `host:port` of the process.
      servers: how many parameter servers.
      workers: how many workers.
    """
    host = address.rpartition(":")[0]
    # Nobody listens there: the places only say how many there are.
    places = [f"{host}:{1 + i}" for i in range(servers + workers)]
    cluster = {"chief": [address], "ps": places[:servers], "worker": places[servers:]}
    return {TF_CONFIG: tf_config(cluster, "chief", 0), LOCAL_CLUSTER: "1"}


def holds_a_place() -> bool:
    """True if `TF_CONFIG` makes this process a place where the chief starts a parameter server, or one's worker."""
    try:
        described = parse_json(os.environ[TF_CONFIG])
        return "ps" in described["cluster"] and described["task"]["type"] in ("ps", "worker")
    except (KeyError, TypeError, ValueError):
        return False


def rank_of_this_process(environment: Mapping[str, str] | None = None) -> int:
    """The rank that `TF_CONFIG` gives this process: the chief first, then the workers; 0 if there is none."""
    try:
        described = parse_json((os.environ if environment is None else environment)[TF_CONFIG])
        kind, index = described["task"]["type"], task_number(described["task"]["index"]) or 0
        return index + len(described["cluster"].get("chief", ())) if kind == "worker" else index
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0
