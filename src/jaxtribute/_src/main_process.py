"""The process of a job that prints, and writes what is written once."""

from __future__ import annotations

from jaxtribute._src.core.cluster import runtime
from jaxtribute._src.core.cluster.resolvers import detect
from jaxtribute._src.core.cluster.roster import Roster


def is_main() -> bool:
    """Returns True in the process of a job that prints, and writes what is written once.

    It is the chief if the cluster has one (the coordinator, beside parameter servers), else the first worker; in a
    program of one process always True. It may be asked before a strategy is made: it starts no device and joins no
    cluster, and reads then what the environment says.

        if jd.is_main():
            print(f"step {step}: loss {loss:.4f}")

    Every worker must still take part in what workers do together: steps, reductions, `save` of a checkpoint.

    Raises:
      ClusterSpecError: the environment describes a cluster, and does so incompletely or wrongly.

    Examples:
      >>> if jd.is_main():
      ...     print("written once, by the first worker")
      written once, by the first worker

    Source: `is_main_process` of Accelerate; `tf.distribute` has programs compare `task_type` and `task_id`.
    """
    cluster = runtime.Cluster.current()
    if cluster is not None:
        return cluster.rank == 0
    detection = detect()
    if detection is None:
        return True
    spec = detection.resolver.cluster_spec()
    if not spec.jobs:
        return True
    task_type, task_id = detection.resolver.own_task()
    return task_type in Roster.JOBS and Roster.of(spec.as_dict(), task_type, task_id).rank == 0
