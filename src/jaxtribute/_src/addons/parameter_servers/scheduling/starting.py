"""Starting a cluster's processes for a resolver."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from jaxtribute._src.addons.messaging.transport import Keys, TaskSettings
from jaxtribute._src.addons.parameter_servers.engines.engine import Engine
from jaxtribute._src.addons.parameter_servers.engines.ray_node import (
    START_S,
    RayNode,
    owns_cluster,
    prepare_ray,
    start_head,
)
from jaxtribute._src.addons.parameter_servers.scheduling.cluster import Cluster
from jaxtribute._src.addons.parameter_servers.scheduling.worker_task import WorkerTask
from jaxtribute._src.addons.parameter_servers.server.server_task import ServerTask
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ClusterSpecError
from jaxtribute.extending import Folder, settings
from jaxtribute.typing import Foreign

_JOBS = ("chief", "ps", "worker", "evaluator")


def start_cluster(resolver: Foreign, address: str | None, **options: Any) -> Cluster:
    """Starts the servers and workers that a resolver describes, on Ray.

    Args:
      resolver: a cluster resolver, or a map of job names to addresses, or to how many tasks.
      address: of a Ray cluster; by default that of the environment's RAY_ADDRESS, if any.
      options: those of `Cluster`.

    Raises:
      ArgumentError: there are no servers or no workers.
    """
    servers, workers = tasks_of(resolver)
    chief = owns_cluster(resolver) if address is None else None
    if chief is None:
        address = address or os.environ.get("RAY_ADDRESS")  # as `ray.init` does; `ray job submit` sets it
    node = start_head(chief) if chief is not None else None
    try:
        return _start(node, address or chief, servers, workers, **options)
    except BaseException:
        if node is not None:
            node.stop()
        raise


def _start(node: RayNode | None, address: str | None, servers: int, workers: int, **options: Any) -> Cluster:
    prepare_ray()
    from jaxtribute._src.addons.parameter_servers.engines.ray_engine import RayEngine

    remote = address is not None
    folder = Folder()
    # Without an address all processes speak through the folder, which no other user can open.
    task_settings = TaskSettings(folder.path, Keys.make() if remote else None)
    if node is not None:
        # Nodes of other machines join when their `jd.Server` does, which takes Ray longer than a process takes to
        # start.
        options["timeout_s"] = max(options["timeout_s"], START_S)
    try:
        engine: Engine = RayEngine(make_task, task_settings, address, remote=remote, node=node)
    except BaseException:
        folder.close()
        raise
    return Cluster(engine, folder, task_settings, servers=servers, workers=workers, **options)


def make_task(
    role: str, index: int, settings: TaskSettings, host: str | None, *arguments: Any
) -> ServerTask | WorkerTask:
    """Makes the task of a process: a worker, a server (`ps`) or a server's mirror (`mirror`)."""
    if role == "worker":
        return WorkerTask(index, settings, *arguments)
    return ServerTask(index, settings, host)


def tasks_of(resolver: Foreign) -> tuple[int, int]:
    """Number of servers and workers that a resolver describes.

    Raises:
      ArgumentError: none, or a negative number of them.
      ClusterSpecError: it has jobs that no cluster of servers has, or this process is none that makes the strategy.
      ArgumentTypeError: it describes no cluster, or a number of tasks is no whole number.
    """
    spec = resolver.cluster_spec() if hasattr(resolver, "cluster_spec") else resolver
    if not hasattr(spec, "as_dict") and not isinstance(spec, Mapping):
        raise ArgumentTypeError(
            f"the cluster is {spec!r} of type {type(spec).__name__}. "
            "HINT: pass a cluster resolver, a jd.ClusterSpec or a map such as {'ps': 1, 'worker': 2}."
        )
    jobs: dict[str, Any] = dict(cast("Any", spec).as_dict() if hasattr(spec, "as_dict") else spec)
    _check_jobs(jobs, getattr(resolver, "task_type", None), getattr(resolver, "task_id", None))
    counts = _count("ps", jobs), _count("worker", jobs)
    if not all(counts):
        raise ArgumentError(
            f"the cluster has {counts[0]} parameter servers and {counts[1]} workers: {jobs}. "
            "HINT: give the cluster spec the jobs 'ps' and 'worker', with at least one task each."
        )
    return counts


def _check_jobs(jobs: Mapping[str, Any], task_type: str | None, task_id: int | None) -> None:
    """Checks what a resolver says of the cluster and of this process, before anything is started."""
    strange = [job for job in jobs if job not in _JOBS]
    if strange:
        raise ClusterSpecError(f"the cluster has the jobs {strange}: {dict(jobs)}. HINT: jobs are {', '.join(_JOBS)}.")
    for job in ("chief", "evaluator"):
        count = _count(job, jobs)
        if count > 1:
            raise ClusterSpecError(f"the cluster has {count} tasks of job {job!r}: {jobs[job]}. HINT: give it one.")
    if task_type is None:
        return
    if task_type not in _JOBS:
        raise ClusterSpecError(f"this process is of job {task_type!r}. HINT: jobs are {', '.join(_JOBS)}.")
    count = _count(task_type, jobs)
    if task_id is not None and task_id >= count and (count or task_type != "evaluator"):
        raise ClusterSpecError(
            f"this process is {task_type} {task_id}, and the cluster has {count} tasks of that job: {dict(jobs)}. "
            "HINT: set the task's type and index in TF_CONFIG, or the resolver's task_type and task_id."
        )
    if task_type != "chief" and "chief" in jobs:
        # It would start servers and workers of its own, beside those of the chief.
        raise ClusterSpecError(
            f"this process is {task_type} {task_id}, and the cluster's chief makes the strategy. HINT: ps and worker "
            "call jd.Server(...).join(); an evaluator uses jd.experimental.SidecarEvaluator."
        )


def _count(job: str, jobs: Mapping[str, Any]) -> int:
    tasks = jobs.get(job, 0)
    if isinstance(tasks, Mapping) or (isinstance(tasks, Sequence) and not isinstance(tasks, (str, bytes))):
        return len(tasks)
    return settings.whole(f"the number of tasks of job {job!r}", tasks)
