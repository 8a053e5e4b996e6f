"""The cluster as it was understood, and who said so."""

from __future__ import annotations

from collections.abc import Iterator

from jaxtribute._src.cluster.addresses import Address
from jaxtribute._src.cluster.resolvers import known
from jaxtribute._src.tools.doctor.findings import Finding, Level
from jaxtribute._src.tools.doctor.situation import Situation

_SHOWN = 8


def check(situation: Situation) -> Iterator[Finding]:
    """Says which resolver fits, which tasks there are, and which is this one."""
    found = situation.detection
    if found is not None:
        yield Finding(Level.FACT, "resolver", f"{type(found.resolver).__name__}: {found.why}")
    if situation.problem:
        words, _, fix = situation.problem.partition(" HINT: ")
        yield Finding(Level.ERROR, "cluster", words, fix)
    elif found is None:
        looked = "; ".join(kind.looks_for for kind in known() if kind.looks_for)
        yield Finding(Level.FACT, "resolver", f"none: this process trains alone. Looked for {looked}")
        yield from _half_set(situation)
    if situation.spec is None:
        return
    for job in situation.spec.jobs:
        addresses = [str(address) for address in situation.spec.job_tasks(job)]
        more = f" and {len(addresses) - _SHOWN} more" if len(addresses) > _SHOWN else ""
        yield Finding(Level.FACT, f"job {job}", f"{len(addresses)}: {', '.join(addresses[:_SHOWN])}{more}")
    if situation.roster is not None:
        yield Finding(Level.FACT, "this process", str(situation.roster.own))
        yield from _loopback(situation)
    elif found is not None and not situation.problem:
        yield Finding(Level.FACT, "this process", f"{found.resolver.task_type}, which does not train with the workers")


def _half_set(situation: Situation) -> Iterator[Finding]:
    """An allocation of Slurm in which no step has been started."""
    job = situation.environ.get("SLURM_JOB_ID")
    if job:
        yield Finding(
            Level.WARNING,
            "Slurm",
            f"SLURM_JOB_ID={job} is an allocation, and this is no step of it: one process on one machine",
            "start the program with srun, such as `srun jaxtribute launch train.py`.",
        )


def _loopback(situation: Situation) -> Iterator[Finding]:
    """Addresses that mean another machine on each machine."""
    assert situation.roster is not None
    members = situation.roster.members
    local = [member for member in members if Address.parse(member.address).is_loopback()]
    if local and len(local) < len(members):
        yield Finding(
            Level.ERROR,
            "addresses",
            f"{', '.join(map(str, local))} can be reached from one machine only, and others are elsewhere",
            "give each task the name or address by which the other machines know its machine.",
        )
