"""`FullyShardedStrategy`: synchronous training with variables and slots in slices, one a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from jaxtribute._src.core import settings
from jaxtribute._src.core.backend import prepare_cpu_backend
from jaxtribute._src.core.cluster.runtime import Cluster
from jaxtribute._src.core.collectives.options import CommunicationOptions
from jaxtribute._src.core.strategies.base import Strategy
from jaxtribute._src.core.strategies.groups import Groups, ProgramLayout
from jaxtribute._src.core.strategies.mirrored import local_mesh
from jaxtribute._src.core.strategies.multi_worker import MultiWorkerExtended, worker_mesh
from jaxtribute._src.core.types import Device
from jaxtribute._src.core.values.enums import VariableSynchronization
from jaxtribute._src.core.values.layouts import LayoutMap
from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh
from jaxtribute._src.core.values.policies.base import Policy
from jaxtribute._src.core.values.policies.sharded import SHARDED_BYTES, ShardedPolicy
from jaxtribute._src.core.values.slices import Cut, NotCuttable
from jaxtribute.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtribute._src.core.cluster.resolvers.base import ClusterResolver
    from jaxtribute._src.core.values.variable import Variable


_SHARED = frozenset({VariableSynchronization.AUTO, VariableSynchronization.ON_WRITE})


class FullyShardedExtended(MultiWorkerExtended):
    """Replicas on `mesh`, and one slice of every large variable on each.

    Args:
      mesh: the device of each replica, over all workers.
      cluster: the workers; None if there is one that belongs to no cluster.
      layouts: how variables that say nothing themselves lie on the devices of a replica.
      min_bytes: variables that are smaller have a copy on each device.
      regather: whether the backward pass gathers variables again.
    """

    def __init__(
        self, mesh: ReplicaMesh, cluster: Cluster | None, layouts: LayoutMap | None, *, min_bytes: int, regather: bool
    ) -> None:
        super().__init__(mesh, cluster, CommunicationOptions(), layouts)
        self._min_bytes, self._regather = min_bytes, regather

    def variable_policy(self, synchronization: VariableSynchronization) -> tuple[Policy, VariableSynchronization]:
        """One slice of each variable on each device; ON_READ variables as `MirroredStrategy` keeps them."""
        # ON_READ variables stay rows: replicas write them apart, so they are in pieces already.
        policy, synchronization = super().variable_policy(synchronization)
        # The devices of a single replica have a piece each, too.
        alone = self.mesh.size == 1 and self.mesh.group and synchronization in _SHARED
        if policy.mirrored or alone:
            policy = ShardedPolicy(self.mesh, min_bytes=self._min_bytes, regather=self._regather)
        return policy, synchronization

    def layout_of(self, variable: Variable) -> Layout:
        """An automatic layout leaves every replica a piece: it splits nothing that could not be cut as well then."""
        if not isinstance(self.layouts, ProgramLayout) or not self.mesh.group:
            return super().layout_of(variable)
        layout = self.layouts.layout_of(variable, self.mesh, self._min_bytes)
        try:
            Cut.of(variable.shape, self.mesh, layout)
        except NotCuttable:
            return ()
        return layout


class FullyShardedStrategy(Strategy):
    """Trains as `MirroredStrategy` does, and keeps one slice of each variable and of its slots on each device.

    Fully sharded data parallelism (FSDP, ZeRO stage 3): a replica function that reads a variable gets it gathered from
    all devices; `jd.Optimizer` reduce-scatters the gradients, and each replica updates its own slice. Parameters and
    slots take `1 / devices` of the memory on each device, for the price of one all-gather in the forward pass and one
    in the backward pass. Steps, variables and optimizers are written as for every other strategy, and give the same
    results.

    Args:
      devices: TensorFlow's names of the devices, or JAX devices, one replica each, or a number of them, as for
        `MirroredStrategy`. By default (None or empty) all accelerators, or all (logical) CPU devices if there is none.
      cluster_resolver: says who the workers are and which one this is, for slices over the devices of all of them.
        By default this process is the only worker.
      min_bytes: variables of fewer bytes are mirrored, as gathering them costs more than it saves.
      regather: whether the backward pass of `jd.value_and_grad` gathers the variables again. If not, those that
        it needs stay gathered from the forward pass on: one all-gather less, for the memory of all of them.
      devices_per_replica: number of devices of each replica, as for `MirroredStrategy`.
      replica_shape: names and lengths of the axes within a replica, likewise.
      layout: how variables lie on the devices of a replica, likewise.

    Raises:
      DeviceError: a device that does not exist, or one that is named twice.
      ArgumentTypeError: a single string instead of a list.
      ArgumentError: a negative `min_bytes`, or devices of a cluster, all of which are taken.
      ClusterSpecError: the cluster is described wrongly, or this process is none of its workers.
      DeadlineError: workers did not come in time; it names them.

    Examples:
      >>> strategy = jd.FullyShardedStrategy(4, min_bytes=0)
      >>> with strategy.scope():
      ...     w = jd.Variable(jnp.zeros((8, 2)))
      >>> [shard.data.shape for shard in w.stored.addressable_shards]  # flat slices of 16 numbers
      [(4,), (4,), (4,), (4,)]

    Source: ZeRO (Rajbhandari et al., 2020); `tf.distribute.MultiWorkerMirroredStrategy` for the rest.
    """

    def __init__(
        self,
        devices: Sequence[str | Device] | int | None = None,
        cluster_resolver: ClusterResolver | None = None,
        *,
        min_bytes: int = SHARDED_BYTES,
        regather: bool = True,
        devices_per_replica: int | None = None,
        replica_shape: Mapping[str, int] | None = None,
        layout: LayoutMap | Mapping[str, Any] | str | None = None,
    ) -> None:
        groups = Groups.of(devices_per_replica, replica_shape, layout)
        min_bytes, regather = settings.whole("min_bytes", min_bytes), settings.flag("regather", regather)
        if devices is not None and not isinstance(devices, int):
            devices = settings.sequence("devices", devices)
        if devices and cluster_resolver is not None:
            raise ArgumentError(f"devices is {devices!r} beside a cluster_resolver. HINT: a cluster's are all taken.")
        self._resolver = cluster_resolver
        cluster = None if cluster_resolver is None else Cluster.join(cluster_resolver)
        if cluster is None:
            mesh = local_mesh(devices, groups=groups)
        else:
            prepare_cpu_backend()
            mesh = worker_mesh(cluster, jax.devices(), groups)
        super().__init__(FullyShardedExtended(mesh, cluster, groups.layouts, min_bytes=min_bytes, regather=regather))

    @property
    def cluster_resolver(self) -> Any:
        """Resolver that describes the cluster; None if there is none."""
        return self._resolver
