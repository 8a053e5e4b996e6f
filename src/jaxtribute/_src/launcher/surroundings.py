"""Surroundings of a launch: a machine alone, a step of Slurm, or a pod of a Kubernetes Job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace

from jaxtribute._src.cluster.addresses import Address
from jaxtribute._src.cluster.resolvers.slurm import SlurmClusterResolver
from jaxtribute._src.cluster.slurm_lists import expand_counts, expand_hosts
from jaxtribute._src.launcher.options import Options
from jaxtribute._src.launcher.settings import LAUNCHER, TF_CONFIG
from jaxtribute.errors import ArgumentError, ClusterSpecError

_TASKS, _HOSTS, _COUNTS = "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"
_RANK, _JOB = "SLURM_PROCID", "SLURM_JOB_ID"
POD_INDEX = "JOB_COMPLETION_INDEX"
"""The pod's number, which Kubernetes sets in an indexed Job."""
_FIRST_PORT, _PORTS = 20000, 20000


def complete(
    options: Options, nodes: int | None, node_rank: int | None, environment: Mapping[str, str] | None = None
) -> Options:
    """The options with what the surroundings say about other machines.

    Args:
        options: What was asked for, apart from the machines.
        nodes: Machines, where that was asked for.
        node_rank: This machine, where that was asked for.
        environment: Where Slurm and Kubernetes leave their word; this process's environment by default.

    Raises:
        ArgumentError: The machines do not fit each other.
        ClusterSpecError: Slurm's variables are malformed.
    """
    environment = os.environ if environment is None else environment
    if nodes is None and environment.get(_TASKS):
        return _in_slurm(options, environment)
    nodes = nodes or 1
    if node_rank is None:
        node_rank = _pod_index(environment, nodes) if nodes > 1 else 0
    if not 0 <= node_rank < nodes:
        raise ArgumentError(
            f"--node-rank {node_rank} of --nodes {nodes}. HINT: machines are numbered from 0 to {nodes - 1}."
        )
    if nodes > 1:
        if options.coordinator is None:
            raise ArgumentError(
                f"--nodes {nodes} without --coordinator. HINT: give host:port of machine 0, the same on all machines."
            )
        Address.parse(options.coordinator)
    return replace(options, nodes=nodes, node_rank=node_rank)


def rank_set_by_slurm(environment: Mapping[str, str] | None = None) -> bool:
    """True if Slurm has started several tasks on a machine, so that each of them is a rank already."""
    environment = os.environ if environment is None else environment
    return bool(environment.get(_TASKS)) and max(expand_counts(environment.get(_COUNTS, "1"))) > 1


def slurm_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for the program of a task that Slurm has started as a rank.

    Raises:
        ClusterSpecError: Slurm's variables are incomplete or contradict each other.
    """
    found = dict(os.environ if environment is None else environment)
    resolver = SlurmClusterResolver(environ=found)
    spec = resolver.cluster_spec()  # which also sets the GPUs of this task in `found`
    task = {"type": resolver.task_type, "index": resolver.task_id}
    return found | {TF_CONFIG: json.dumps({"cluster": spec.as_dict(), "task": task}), LAUNCHER: "1"}


def _in_slurm(options: Options, environment: Mapping[str, str]) -> Options:
    missing = [name for name in (_HOSTS, _RANK) if not environment.get(name)]
    if missing:
        raise ClusterSpecError(
            f"{_TASKS}={environment[_TASKS]!r} says that this is a step of Slurm, and {', '.join(missing)} is missing. "
            "HINT: let a container pass on all SLURM_ variables, or give --nodes 1 to run on this machine alone."
        )
    hosts = expand_hosts(environment[_HOSTS])
    rank = int(environment[_RANK])
    if len(hosts) == 1:
        return options
    job = environment.get(_JOB, "0")
    port = _FIRST_PORT + (int(job) if job.isdecimal() else 0) % _PORTS
    coordinator = options.coordinator or f"{hosts[0]}:{port}"
    return replace(options, nodes=len(hosts), node_rank=rank, coordinator=coordinator)


def _pod_index(environment: Mapping[str, str], nodes: int) -> int:
    text = environment.get(POD_INDEX, "")
    if not text.isdecimal():
        raise ArgumentError(
            f"--nodes {nodes} without --node-rank, and {POD_INDEX}={text!r} does not say it either. "
            "HINT: give --node-rank 0 on one machine, 1 on the next, and so on."
        )
    return int(text)
