"""Options of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PREEMPTIONS = 100
"""Starts after preemptions; a program that always asks to be started again must end some time."""


@dataclass(frozen=True)
class Options:
    """One launch, on this machine.

    Attributes:
        command: The program of every rank with its arguments.
        workers: Processes on this machine.
        served: Parameter servers and workers that the one process starts by itself; `None` for a job without servers.
        devices: Logical CPU devices a process; `None` leaves it what it finds.
        gpus: GPUs a process, of those that this machine has; `None` leaves it all.
        nodes: Machines.
        node_rank: This machine among them; machine 0 is the one that the others find.
        coordinator: `host:port` of machine 0's launcher, where there are several machines.
        key: A secret that the launchers share, by which they know each other; `None` believes who comes first.
        join_timeout_s: Seconds to wait for the other machines.
        max_restarts: How often the job is started again after a failure.
        max_preemptions: How often it is started again after it was preempted and has saved; `None` for `PREEMPTIONS`
            where it is started again after failures, else never.
        min_workers: Workers of all machines that suffice to go on; `None` takes all.
        grace_s: Seconds between SIGTERM and SIGKILL for the others of a rank that failed.
        save_s: Seconds that preempted processes have to save.
        log_dir: Where the log files go, one a rank; `None` writes none.
        split: Whether only rank 0's output is shown.
        variables: Environment variables for every rank.
    """

    command: tuple[str, ...]
    workers: int = 1
    served: tuple[int, int] | None = None
    devices: int | None = None
    gpus: int | None = None
    nodes: int = 1
    node_rank: int = 0
    coordinator: str | None = None
    key: bytes | None = field(default=None, repr=False)
    join_timeout_s: float = 300.0
    max_restarts: int = 0
    max_preemptions: int | None = None
    min_workers: int | None = None
    grace_s: float = 3.0
    save_s: float = 60.0
    log_dir: Path | None = None
    split: bool = False
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def preemptions(self) -> int:
        """Number of restarts of the job after a preemption."""
        if self.max_preemptions is not None:
            return self.max_preemptions
        return PREEMPTIONS if self.max_restarts else 0
