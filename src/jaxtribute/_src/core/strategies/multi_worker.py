"""`MultiWorkerMirroredStrategy`: synchronous training on the devices of several processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxtribute._src.core.backend import arithmetic, prepare_cpu_backend
from jaxtribute._src.core.cluster.resolvers import from_environment
from jaxtribute._src.core.cluster.runtime import Cluster
from jaxtribute._src.core.collectives.cross_device_ops import CrossDeviceOps
from jaxtribute._src.core.collectives.options import CommunicationImplementation, CommunicationOptions, checked_hints
from jaxtribute._src.core.collectives.summation import AutoSum, ExchangeSum, Summation
from jaxtribute._src.core.devices import default_devices
from jaxtribute._src.core.strategies.base import Strategy
from jaxtribute._src.core.strategies.extended import StrategyExtended
from jaxtribute._src.core.strategies.groups import ALONE, Groups
from jaxtribute._src.core.strategies.mirrored import distinct_devices
from jaxtribute._src.core.types import Device
from jaxtribute._src.core.values.layouts import LayoutMap
from jaxtribute._src.core.values.mesh import AXIS, ReplicaMesh
from jaxtribute._src.core.values.placing import put
from jaxtribute.errors import ClusterError

if TYPE_CHECKING:
    from jaxtribute._src.core.cluster.resolvers.base import ClusterResolver
    from jaxtribute._src.core.input.agreement import Agreements
    from jaxtribute._src.core.input.options import InputContext

PACKED_BYTES = 1 << 20
"""Arrays up to this size share a collective between processes, whose every message costs about a millisecond."""


NETWORK_BYTES = 256 << 10
"""Arrays up to this size are exchanged between processes of several machines; larger ones take the ring.

Gloo sends and receives one after the other in an exchange, and both at once in a ring. On one machine that is the same
work; on a cable of 1 Gbit/s an exchange of 16 MB took 280 ms, the ring 143 ms, and at 128 to 512 KB they were equal.
"""


LOCAL_OPERATIONS = 60.0
"""Multiplications and additions that take as long as a byte less to send between processes of a machine.

Measured: loopback moves 1 GB a second each way, and a core multiplies matrices at 70 to 100 GFLOP/s.
"""
NETWORK_OPERATIONS = 500.0
"""Likewise between machines. On a cable of 1 Gbit/s one core makes up for 600; a faster one joins machines of more
cores."""


class MultiWorkerOps(CrossDeviceOps):
    """The fastest reduction between processes: few collectives, of arrays packed up to a megabyte.

    On CPU the replicas of several workers exchange arrays in pairs, large ones only if a machine is all that lies
    between the workers; and they gather the factors of a large product if that is less to send (`products.py`). The
    hints can ask for a plain ring.

    Args:
      options: the strategy's hints; those of a call take precedence.
      one_machine: True if all workers run on one machine.
      alike: True if all workers compute the same bits from the same numbers.
    """

    def __init__(self, options: CommunicationOptions, one_machine: bool, alike: bool) -> None:
        self._options, self._one_machine, self._alike = options, one_machine, alike

    def summation(self, mesh: ReplicaMesh, options: CommunicationOptions | None) -> Summation:
        """A sum for each large array, one for all small ones; of arrays that replicas hold in parts one for each."""
        # XLA divides each of a replica's arrays over its devices; packed together they would have to be gathered first.
        if mesh.group:
            return AutoSum(0)
        hints = [hint for hint in (options, self._options) if hint is not None]
        small_bytes = next((hint.bytes_per_pack for hint in hints if hint.bytes_per_pack), PACKED_BYTES)
        # A hint of the call and one of the strategy count alike.
        ring = any(hint.implementation is CommunicationImplementation.RING for hint in hints)
        if ring or not _on_gloo(mesh):
            return AutoSum(small_bytes)
        # Each replica multiplies the factors of all. Unless they all get the same bits, mirrored variables would drift
        # apart.
        if self._one_machine:
            return ExchangeSum(small_bytes, computes=LOCAL_OPERATIONS if self._alike else 0.0)
        computes = NETWORK_OPERATIONS if self._alike else 0.0
        return ExchangeSum(small_bytes, NETWORK_BYTES, NETWORK_BYTES, computes)


def _on_gloo(mesh: ReplicaMesh) -> bool:
    """True if the replicas' devices are CPUs of several processes."""
    return mesh.peers is not None and mesh.devices[0].platform == "cpu"


def worker_mesh(cluster: Cluster | None, devices: Sequence[Device], groups: Groups = ALONE) -> ReplicaMesh:
    """The mesh of all workers' devices, in the order of ranks.

    Raises:
      ClusterError: the workers have different numbers of devices.
    """
    # JAX's own order follows the ids of devices, which need not follow the ranks.
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    # Without peers the mesh neither reports steps nor bounds them for others' sake.
    if cluster is None or cluster.workers == 1:
        return groups.mesh(ordered)
    counts = Counter(device.process_index for device in ordered)
    if len(counts) != cluster.workers or len(set(counts.values())) > 1:
        by_name = {name: counts[rank] for rank, name in enumerate(cluster.names)}
        raise ClusterError(
            f"the workers have different numbers of devices: {by_name}. HINT: start each with the same number, e.g. "
            "JAXTRIBUTE_CPU_DEVICES or CUDA_VISIBLE_DEVICES."
        )
    mesh = groups.mesh(ordered, cluster)
    if mesh.devices[0].platform == "cpu":
        _connect(mesh, cluster)
    return mesh


def _connect(mesh: ReplicaMesh, cluster: Cluster) -> None:
    """Lets Gloo connect the replicas' devices while all workers are known to be here.

    It does so in the first collective, and gives up after 30 s whatever the deadline is: a worker whose first program
    takes longer to compile, or whose first batch comes late, would end the job.
    """
    rows = mesh.assemble([put(np.float32(1), place) for place in mesh.local_places])
    total = mesh.map_replicas(lambda row: lax.psum(row, AXIS), PartitionSpec(AXIS), PartitionSpec())
    # Compiled before the barrier: after it the workers are milliseconds apart, and Gloo's 30 s begin for all at once.
    compiled = jax.jit(total).lower(rows).compile()
    cluster.barrier("connection", cluster.timeout_s)
    jax.block_until_ready(compiled(rows))


class MultiWorkerExtended(StrategyExtended):
    """The plug of strategies whose replicas belong to several processes.

    Args:
      mesh: the device of each replica, over all workers.
      cluster: the workers; None if there is one that belongs to no cluster.
      options: hints for collectives.
      layouts: how variables that say nothing themselves lie on the devices of a replica.
    """

    distinct_devices = staticmethod(distinct_devices)
    worker_mesh = staticmethod(worker_mesh)

    def __init__(
        self,
        mesh: ReplicaMesh,
        cluster: Cluster | None,
        options: CommunicationOptions,
        layouts: LayoutMap | None = None,
    ) -> None:
        ops = None
        if cluster is not None:
            # Told once, as the strategy is made: every program of the cluster has to be the same on all workers.
            alike = _on_gloo(mesh) and len(set(cluster.exchange("the processors of CPU devices", arithmetic()))) == 1
            ops = MultiWorkerOps(options, cluster.roster.shares_machine, alike)
        super().__init__(mesh, ops, layouts, options)
        self._cluster = cluster

    def input_context(self) -> InputContext:
        """One input pipeline a worker."""
        from jaxtribute._src.core.input.options import InputContext

        if self._cluster is None:
            return super().input_context()
        # Workers that share a replica read the same data.
        sharing = self.mesh.workers_per_replica
        return InputContext(self._cluster.workers // sharing, self._cluster.rank // sharing, self.mesh.size)

    def input_agreements(self) -> Agreements | None:
        """Over the coordination service."""
        from jaxtribute._src.core.input.agreement import KeyValueAgreements

        # Agreements cost a message a step: who is alone asks nobody.
        if self._cluster is None or self._cluster.workers == 1:
            return None
        cluster = self._cluster
        # All workers run the same program and so count alike: the number makes each dataset's keys its own.
        name = f"jaxtribute/input/{cluster.number('dataset')}"
        return KeyValueAgreements(cluster, name, cluster.workers, cluster.rank, cluster.timeout_s)


class MultiWorkerMirroredStrategy(Strategy):
    """Keeps a copy of every variable on each device of every worker, and runs one replica on each, in step.

    One process is one worker; each runs the same program. The first to come waits for the others.

    Args:
      cluster_resolver: says who the workers are and which one this is; by default `TF_CONFIG`, or else what the
        environment says of a step of Slurm, a slice of TPUs or an indexed Job of Kubernetes (see
        `jd.cluster_resolver.detect`). Without a cluster of several tasks there, this process is the only worker.
      communication_options: hints for collectives; `timeout_seconds` bounds the waiting for other workers.
      devices_per_replica: number of devices of each replica, as for `MirroredStrategy`.
      replica_shape: names and lengths of the axes within a replica, likewise.
      layout: how variables lie on the devices of a replica, likewise.

    Raises:
      ClusterSpecError: the cluster is described wrongly, or this process is none of its workers.
      ConfigError: JAX has started already.
      DeadlineError: workers did not come in time; it names them.
      ClusterError: the workers have different numbers of devices.

    Examples:
      >>> strategy = jd.MultiWorkerMirroredStrategy()  # without a cluster, this process is the only worker
      >>> strategy.cluster_resolver.cluster_spec().as_dict()
      {}

    Source: `tf.distribute.MultiWorkerMirroredStrategy`.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
        *,
        devices_per_replica: int | None = None,
        replica_shape: Mapping[str, int] | None = None,
        layout: LayoutMap | Mapping[str, Any] | str | None = None,
    ) -> None:
        groups = Groups.of(devices_per_replica, replica_shape, layout)
        options = checked_hints(communication_options) or CommunicationOptions()
        self._resolver = cluster_resolver if cluster_resolver is not None else from_environment()
        # Before anything asks for a device: a process can only join while JAX has not started.
        cluster = Cluster.join(self._resolver, options.timeout_seconds)
        prepare_cpu_backend()
        mesh = worker_mesh(cluster, default_devices() if cluster is None else jax.devices(), groups)
        super().__init__(MultiWorkerExtended(mesh, cluster, options, groups.layouts))

    @property
    def cluster_resolver(self) -> Any:
        """Resolver that describes the cluster. Source: `tf.distribute.Strategy.cluster_resolver`."""
        return self._resolver
