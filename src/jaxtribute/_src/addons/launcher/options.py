"""Options of a launch, completed by what Slurm or Kubernetes says of the machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtribute._src.addons.resolvers.slurm import HOSTS, RANK, TASKS, expand_hosts
from jaxtribute.errors import ArgumentError, ClusterSpecError
from jaxtribute.extending import Address, shown, whole_number

if TYPE_CHECKING:
    from jaxtribute._src.addons.launcher.attempt import Outcome

PREEMPTIONS = 100
"""Starts after preemptions; a program that always asks to be started again must end some time."""


@dataclass(frozen=True)
class Options:
    """One launch, on this machine.

    Attributes:
      command: the program of every rank with its arguments.
      workers: processes on this machine.
      served: parameter servers and workers that the one process starts by itself; `None` for a job without servers.
      devices: logical CPU devices a process; `None` leaves it what it finds.
      gpus: GPUs a process, of those that this machine has; `None` divides them over several processes.
      shares_gpus: whether islands may share a GPU.
      nodes: machines.
      node_rank: this machine among them; machine 0 is the one that the others find.
      coordinator: `host:port` of machine 0's launcher, if there are several machines.
      key: a secret that the launchers share, by which they know each other; `None` believes who comes first.
      join_timeout_s: seconds to wait for the other machines.
      max_restarts: how often the job is started again after a failure.
      max_preemptions: how often it is started again after it was preempted and has saved; `None` for `PREEMPTIONS`
        where it is started again after failures, else never.
      min_workers: workers of all machines that suffice to go on; `None` takes all.
      min_islands: islands that suffice to go on, of a job whose processes are islands, each of which is started again
        alone; `None` for a job that is started again as a whole.
      hosts: addresses of the machines that islands are on, if there are several; their launchers do not speak.
      port: of the first island of each of these machines; the others have the ports after it.
      spares: processes that are started and wait for the place of an island that dies.
      rejoins: whether this machine's islands join those of the others, after its launcher has ended.
      grace_s: seconds between SIGTERM and SIGKILL for the others of a rank that failed.
      save_s: seconds that preempted processes have to save.
      log_dir: where the log files go, one a rank; `None` writes none.
      split: whether only rank 0's output is shown.
      quiet: whether the launcher says nothing of its own, except why a rank failed.
      ray: address of a Ray cluster that places the workers; `None` starts them on this machine.
      resources: amounts of the Ray cluster's resources that each worker takes.
      programs: folder for compiled programs, which restarts find there; `None` keeps none.
      variables: environment variables for every rank.
      told: is told how each process of an island has ended, and if the island is started again.
    """

    command: tuple[str, ...]
    workers: int = 1
    served: tuple[int, int] | None = None
    devices: int | None = None
    gpus: int | None = None
    shares_gpus: bool = False
    nodes: int = 1
    node_rank: int = 0
    coordinator: str | None = None
    key: bytes | None = field(default=None, repr=False)
    join_timeout_s: float = 300.0
    max_restarts: int = 0
    max_preemptions: int | None = None
    min_workers: int | None = None
    min_islands: int | None = None
    hosts: tuple[str, ...] = ()
    port: int = 0
    spares: int = 0
    rejoins: bool = False
    grace_s: float = 3.0
    save_s: float = 60.0
    log_dir: Path | None = None
    split: bool = False
    quiet: bool = False
    ray: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    programs: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    told: Callable[[Outcome, bool], object] | None = field(default=None, repr=False)

    @property
    def preemptions(self) -> int:
        """Number of restarts of the job after a preemption."""
        if self.max_preemptions is not None:
            return self.max_preemptions
        return PREEMPTIONS if self.max_restarts else 0


_JOB = "SLURM_JOB_ID"
POD_INDEX = "JOB_COMPLETION_INDEX"
"""The pod's number, which Kubernetes sets in an indexed Job."""
_FIRST_PORT, _PORTS = 20000, 20000


def complete(
    options: Options, nodes: int | None, node_rank: int | None, environment: Mapping[str, str] | None = None
) -> Options:
    """The options with what the surroundings say about other machines.

    Args:
      options: what was asked for, apart from the machines.
      nodes: machines, if that was asked for.
      node_rank: this machine, if that was asked for.
      environment: where Slurm and Kubernetes leave their word; this process's environment by default.

    Raises:
      ArgumentError: the machines do not fit each other.
      ClusterSpecError: Slurm's variables are malformed.
    """
    environment = os.environ if environment is None else environment
    # What the user says of the machines stands above what Slurm says.
    if nodes is None and environment.get(TASKS):
        return _in_slurm(options, environment)
    nodes = nodes or 1
    if nodes == 1 and options.min_workers is not None and options.min_workers > options.workers:
        raise ArgumentError(
            f"--min-workers {options.min_workers} is more than the {options.workers} worker(s) that start. HINT: it is "
            "the least number of workers with which the job goes on; give --workers as many at least."
        )
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
        # A malformed address is an error here, and not only once machines wait for each other.
        Address.parse(options.coordinator)
    return replace(options, nodes=nodes, node_rank=node_rank)


def _in_slurm(options: Options, environment: Mapping[str, str]) -> Options:
    missing = [name for name in (HOSTS, RANK) if not environment.get(name)]
    if missing:
        raise ClusterSpecError(
            f"{TASKS}={environment[TASKS]!r} says that this is a step of Slurm, and {', '.join(missing)} is missing. "
            "HINT: let a container pass on all SLURM_ variables, or give --nodes 1 to run on this machine alone."
        )
    hosts = expand_hosts(environment[HOSTS])
    rank = whole_number(environment[RANK])
    if rank is None:
        raise ClusterSpecError(
            f"{RANK} is {shown(environment[RANK])}: expected a whole number from 0 on. HINT: let nothing but srun set "
            "it."
        )
    if rank >= len(hosts):
        raise ClusterSpecError(
            f"{RANK} is {rank}, and {HOSTS}={shown(environment[HOSTS])} has {len(hosts)} machines. HINT: let nothing "
            "but srun set them, and start one task a machine (srun --ntasks-per-node=1)."
        )
    if len(hosts) == 1:
        return options
    # Each machine works the port out by itself: one job, one port, and another job on the same machines another.
    job = environment.get(_JOB, "0")
    port = _FIRST_PORT + (whole_number(job) or 0) % _PORTS
    coordinator = options.coordinator or f"{hosts[0]}:{port}"
    return replace(options, nodes=len(hosts), node_rank=rank, coordinator=coordinator)


def _pod_index(environment: Mapping[str, str], nodes: int) -> int:
    text = environment.get(POD_INDEX, "")
    index = whole_number(text)
    if index is None:
        raise ArgumentError(
            f"--nodes {nodes} without --node-rank, and {POD_INDEX}={shown(text)} does not say it either. "
            "HINT: give --node-rank 0 on one machine, 1 on the next, and so on."
        )
    return index
