"""The checks: the cluster as it was understood, ways between the workers, and devices."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import jax

from jaxtribute._src.addons.doctor.report import Finding, Level, Situation
from jaxtribute._src.addons.doctor.versions import check_versions
from jaxtribute._src.addons.launcher.environment import RUN
from jaxtribute._src.addons.messaging.certificates import CERTIFICATE, problem_of
from jaxtribute._src.misspelt import misspelt
from jaxtribute.cluster_resolver import known
from jaxtribute.errors import ClusterSpecError
from jaxtribute.extending import Address, settings, visible_gpus, whole_number

_SHOWN = 8
_VISIBLE, _POOL, _BIND = "CUDA_VISIBLE_DEVICES", "PJRT_NPROC", "JAXTRIBUTE_BIND_ADDRESS"
TIMEOUT_S = 3.0
_READ_BY = {
    "jaxtribute.config": "set_memory_budget",
    "jaxtribute.extending": "Cluster",
    "jaxtribute._src.addons.elastic.arguments": "incarnation_told",
    "jaxtribute._src.addons.testing.faults": "told",
    "jaxtribute._src.addons.tracking.choosing": "told",
}
"""Names of the modules that read settings."""
_PLATFORMS = "JAX_PLATFORMS"


def check_settings(_: Situation) -> Iterator[Finding]:
    """Reads the library's own settings in the environment, each as the library reads it."""
    for module, name in _READ_BY.items():
        getattr(import_module(module), name)  # which loads what reads a setting, and that says how
    for name, problem in settings.problems().items():
        yield Finding.of_error("settings", problem if name in problem.partition(" HINT: ")[0] else f"{name}: {problem}")
    for name, meant in misspelt().items():
        yield Finding(Level.WARNING, "settings", f"{name} is not read", f"set {meant}, if that is meant.")
    yield from _of_run(os.environ.get(RUN, ""))


def _of_run(directory: str) -> Iterator[Finding]:
    """Says that nothing can be written into the folder of a run."""
    path = Path(directory).absolute()
    # Not `exists`, which raises where a folder above may not be looked into.
    place = next(one for one in (path, *path.parents) if os.access(one, os.F_OK))
    if directory and not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        text = f"{RUN}={directory!r}: nothing can be written to {place}."
        yield Finding(Level.ERROR, "settings", text, "name a folder that this user may write to.")


def check_cluster(situation: Situation) -> Iterator[Finding]:
    """Says which resolver fits, which tasks there are, and which is this one."""
    found = situation.detection
    if found is not None:
        yield Finding(Level.FACT, "resolver", f"{type(found.resolver).__name__}: {found.why}")
    if situation.problem:
        yield Finding.of_error("cluster", situation.problem)
    elif found is None:
        # Nothing found is the usual case at home, and a mystery on a cluster: what was looked for tells.
        looked = "; ".join(kind.looks_for for kind in known() if kind.looks_for)
        yield Finding(Level.FACT, "resolver", f"none: this process trains alone. Looked for {looked}")
        yield from _half_set(situation)
    if situation.spec is None:
        return
    for job in situation.spec.jobs:
        addresses = list(map(str, situation.spec.job_tasks(job)))
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
    # On one machine all addresses may be of that kind.
    if local and len(local) < len(members):
        yield Finding(
            Level.ERROR,
            "addresses",
            f"{', '.join(map(str, local))} can be reached from one machine only, and others are elsewhere",
            "give each task the name or address by which the other machines know its machine.",
        )


def check_network(situation: Situation) -> Iterator[Finding]:
    """Looks at the coordinator's port and this machine's own address."""
    roster = situation.roster
    if roster is None or len(roster.members) < 2:
        return
    own, leader = Address.parse(roster.own.address), Address.parse(roster.members[0].address)
    # The first worker is where the coordination service listens; the others only need to get there.
    if roster.rank == 0:
        yield from _can_listen(situation, leader)
    else:
        yield _can_reach(leader, str(roster.members[0]))
        yield from _is_own(own)


def _can_listen(situation: Situation, address: Address) -> Iterator[Finding]:
    bind = situation.environ.get(_BIND)
    try:
        where = Address.parse(bind) if bind else address
    except ClusterSpecError:
        return  # the check of settings has told of it
    try:
        family = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family[0], family[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as the coordination service does
            probe.bind(family[4])
    except OSError as error:
        yield Finding(
            Level.ERROR,
            "coordinator",
            f"this process is to listen at {where}, and cannot: {error}",
            "free that port, or choose another; where the cluster knows this machine by an address that it has not "
            f"itself (behind NAT), set {_BIND}=host:port.",
        )
    else:
        yield Finding(Level.GOOD, "coordinator", f"this process can listen at {where}")


def _can_reach(address: Address, name: str) -> Finding:
    try:
        with socket.create_connection((address.host, address.port), timeout=TIMEOUT_S):
            return Finding(Level.GOOD, "coordinator", f"{name} answers")
    except ConnectionRefusedError:
        return Finding(
            Level.WARNING,
            "coordinator",
            f"the machine of {name} answers, and nothing listens at that port yet",
            "start worker 0; it listens once its program makes the strategy.",
        )
    except socket.gaierror as error:
        fix = "use a name that every machine can look up, or its IP address."
        return Finding(Level.ERROR, "coordinator", f"the name {address.host!r} of {name} is not known: {error}", fix)
    except OSError as error:
        fix = "see that the machine runs, and that no firewall is between: all ports between workers must be open."
        return Finding(Level.ERROR, "coordinator", f"{name} cannot be reached: {error}", fix)


def _is_own(address: Address) -> Iterator[Finding]:
    """Collectives listen on this machine's address in the spec."""
    try:
        family = socket.getaddrinfo(address.host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family[0], family[1]) as probe:
            probe.bind(family[4])
    except OSError as error:
        fix = "let the cluster name this machine by an address that it has."
        yield Finding(Level.ERROR, "own address", f"{address.host!r} is none of this machine: {error}", fix)


def check_certificates(situation: Situation) -> Iterator[Finding]:
    """Reads the certificates by which the job's processes know each other, if the environment names any."""
    problem = problem_of(situation.environ)
    if problem is not None:
        yield Finding(Level.ERROR, "certificates", *problem)
    elif situation.environ.get(CERTIFICATE):
        yield Finding(Level.GOOD, "certificates", f"{situation.environ[CERTIFICATE]} and its key can be read")


def check_devices(situation: Situation) -> Iterator[Finding]:
    """Starts JAX and counts."""
    try:
        devices = jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # the latter, without a word, for a platform that found no device
        yield Finding(
            Level.ERROR,
            "devices",
            f"JAX does not start: {str(error) or 'it finds no device'}",
            f"unset {_PLATFORMS}={situation.environ[_PLATFORMS]!r}, or install JAX for that platform."
            if situation.environ.get(_PLATFORMS)
            else "install JAX for this machine's accelerators: https://docs.jax.dev/en/latest/installation.html",
        )
        return
    kinds = Counter(f"{device.platform.upper()} ({device.device_kind})" for device in devices)
    yield Finding(Level.FACT, "devices", ", ".join(f"{count} x {kind}" for kind, count in kinds.items()))
    platforms = Counter(map(attrgetter("platform"), devices))
    yield from _gpus(situation, platforms["gpu"] + platforms["cuda"] + platforms["rocm"])
    if platforms["cpu"] > 1:
        yield from _pool(situation, platforms["cpu"])


def _gpus(situation: Situation, found: int) -> Iterator[Finding]:
    promised = len(visible_gpus(situation.environ))
    if promised == found:
        return
    # Where GPUs are named, the fault may be in that list; else it is in the driver or in JAX.
    listed = situation.environ.get(_VISIBLE)
    source = f"{_VISIBLE}={listed!r} names" if listed is not None else "this machine has"
    platforms = situation.environ.get(_PLATFORMS, "")
    if found == 0 and platforms and not {"cuda", "gpu", "rocm"} & set(platforms.split(",")):
        yield Finding(Level.FACT, "GPUs", f"{source} {promised}, and {_PLATFORMS}={platforms!r} leaves them out")
    elif found == 0:
        fix = (
            "pip install 'jax[cuda12]', or see the driver with nvidia-smi; JAX_PLATFORMS=cpu says that none is wanted."
        )
        yield Finding(Level.ERROR, "GPUs", f"{source} {promised}, JAX finds none", fix)
    else:
        fix = f"let {_VISIBLE} name GPUs that nvidia-smi lists, once each, before Python starts."
        yield Finding(Level.ERROR, "GPUs", f"{source} {promised}, JAX finds {found}", fix)


def _pool(situation: Situation, devices: int) -> Iterator[Finding]:
    size = situation.environ.get(_POOL, os.environ.get(_POOL, ""))
    # Each device may hold one thread in a collective and one in a launch that follows.
    threads = whole_number(size)
    if threads is not None and threads < 2 * devices:
        yield Finding(
            Level.WARNING,
            "thread pool",
            f"{_POOL}={size} for {devices} CPU devices, which can wait for each other for ever",
            f"unset {_POOL}: jaxtribute chooses {2 * devices}.",
        )


CHECKS: tuple[Callable[[Situation], Iterable[Finding]], ...] = (
    check_versions,
    check_settings,
    check_cluster,
    check_network,
    check_certificates,
    check_devices,  # starts JAX, so it comes after whatever must come before
)
"""The checks, in the order of the report."""
