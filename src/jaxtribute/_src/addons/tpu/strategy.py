"""`TPUStrategy`: synchronous training on TPU devices, of one host or of a slice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from jaxtribute import LayoutMap, Strategy, with_layout
from jaxtribute._src.addons.tpu.device_assignment import DeviceAssignment, is_tpu, tpu_devices
from jaxtribute.config import prepare_cpu_backend
from jaxtribute.errors import ArgumentError, DeviceError
from jaxtribute.experimental import CommunicationOptions
from jaxtribute.extending import (
    Cluster,
    Groups,
    MultiWorkerExtended,
    ReplicaMesh,
    default_devices,
    device_name,
    settings,
)
from jaxtribute.typing import Device, Foreign

if TYPE_CHECKING:
    from jaxtribute.cluster_resolver import ClusterResolver

T = TypeVar("T")


class TPUStrategy(Strategy):
    """Keeps a copy of every variable on each TPU device, and runs one replica on each, in step.

    JAX runs the program on every host of a slice, so there is nothing to connect or initialise first: this makes the
    hosts known to each other, where the resolver names several, and takes all TPU devices that JAX finds.

    It has been tested with CPU devices standing in, through `jd.config.alias_devices({"TPU:0": "CPU:0", ...})`, and
    has not been run on a TPU.

    Args:
      tpu_cluster_resolver: says who the hosts are; by default this host alone, or the cluster that it has joined.
      experimental_device_assignment: a `jd.experimental.DeviceAssignment`, or names or JAX devices, those of a replica
        behind each other; by default all devices, host by host.
      experimental_spmd_xla_partitioning: accepted for compatibility; XLA always divides the work of a replica.
      devices_per_replica: number of devices of each replica, as for `MirroredStrategy`.
      replica_shape: names and lengths of the axes within a replica, likewise.
      layout: how variables lie on the devices of a replica, likewise.

    Raises:
      DeviceError: there is no TPU, or the assignment names a device twice or one that does not exist.
      ClusterError: the hosts have different numbers of devices.
      DeadlineError: hosts did not come in time; it names them.

    Examples:
      >>> strategy = jd.TPUStrategy()  # on a machine without TPUs
      Traceback (most recent call last):
      jaxtribute.errors.DeviceError: ...

    Source: `tf.distribute.TPUStrategy`.
    """

    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver | None = None,
        experimental_device_assignment: DeviceAssignment | Sequence[str | Device] | None = None,
        experimental_spmd_xla_partitioning: bool = False,
        *,
        devices_per_replica: int | None = None,
        replica_shape: Mapping[str, int] | None = None,
        layout: LayoutMap | Mapping[str, Any] | str | None = None,
    ) -> None:
        groups = Groups.of(devices_per_replica, replica_shape, layout)
        self._resolver = tpu_cluster_resolver
        # What the groups are told was checked before: a worker that raised after it had joined would leave the others
        # waiting. And JAX must not have started, since a process joins a cluster before it has a backend.
        cluster = Cluster.join(tpu_cluster_resolver) if tpu_cluster_resolver is not None else None
        prepare_cpu_backend()
        mesh = _mesh(cluster, experimental_device_assignment, groups)
        super().__init__(MultiWorkerExtended(mesh, cluster, CommunicationOptions(), groups.layouts))

    @property
    def cluster_resolver(self) -> Any:
        """Resolver that describes the hosts. Source: `tf.distribute.Strategy.cluster_resolver`."""
        return self._resolver

    def experimental_assign_to_logical_device(self, tensor: T, logical_device_id: int) -> T:
        """Lets each device of a replica hold an array whole, the one that is asked for among them.

        XLA divides what follows among all devices of the replica: it keeps nothing to one of them, and values do not
        depend on it.

        Args:
          tensor: an array in a replica function.
          logical_device_id: the number of a device within the replica.

        Raises:
          ArgumentError: a number that a replica does not have.

        Source: `tf.distribute.TPUStrategy.experimental_assign_to_logical_device`.
        """
        devices = self.extended.mesh.group_size
        if settings.whole("logical_device_id", logical_device_id) >= devices:
            raise ArgumentError(
                f"logical device {logical_device_id}: a replica of {self!r} has {devices}, counted from 0. HINT: pass "
                "devices_per_replica or a device assignment to the strategy."
            )
        return self.experimental_replicate_to_logical_devices(tensor)

    def experimental_split_to_logical_devices(self, tensor: T, partition_dimensions: Sequence[int]) -> T:
        """Lets the devices of a replica hold an array in parts.

        Args:
          tensor: an array in a replica function.
          partition_dimensions: into how many parts each axis is split; their product is the number of devices of a
            replica.

        Raises:
          ArgumentError: another product, another number of axes than the array has, or parts that the axes of
            `replica_shape` do not form.
          ShapeError: an axis that cannot be divided so.

        Source: `tf.distribute.TPUStrategy.experimental_split_to_logical_devices`.
        """
        rank, group = len(getattr(tensor, "shape", ())), self.extended.mesh.group
        parts = [settings.whole("partition_dimensions", one, 1) for one in partition_dimensions]
        if len(parts) != rank or math.prod(parts) != self.extended.mesh.group_size:
            raise ArgumentError(
                f"partition_dimensions {list(partition_dimensions)} for an array of rank {rank}: a replica of {self!r} "
                f"has {self.extended.mesh.group_size} device(s). HINT: pass {rank} numbers whose product is that."
            )
        # XLA splits by named axes, not by counts. Axes are used up from the left, so that 4 parts are one axis of 4, or
        # two of 2 that follow each other.
        names, layout = list(group.items()), list[tuple[str, ...]]()
        for count in parts:
            taken: list[str] = []
            while count > 1 and names and count % names[0][1] == 0:
                taken.append(names[0][0])
                count //= names.pop(0)[1]
            if count > 1:
                raise ArgumentError(
                    f"partition_dimensions {parts} cannot be formed of the axes {group} of a replica. HINT: give the "
                    "strategy a replica_shape with an axis for each part, such as {'rows': 2, 'columns': 2}."
                )
            layout.append(tuple(taken))
        return with_layout(tensor, [axes or None for axes in layout])

    def experimental_replicate_to_logical_devices(self, tensor: T) -> T:
        """Lets each device of a replica hold an array whole.

        Source: `tf.distribute.TPUStrategy.experimental_replicate_to_logical_devices`.
        """
        return with_layout(tensor, ())


def _mesh(cluster: Cluster | None, assignment: Foreign, groups: Groups) -> ReplicaMesh:
    """The replicas' devices: those assigned, or all TPU devices."""
    several = cluster is not None and cluster.workers > 1
    if assignment is None:
        return MultiWorkerExtended.worker_mesh(
            cluster, tpu_devices(jax.devices() if several else default_devices()), groups
        )
    if isinstance(assignment, DeviceAssignment):
        chosen = assignment.devices
        if groups.shape and math.prod(groups.shape.values()) != assignment.num_cores_per_replica:
            raise ArgumentError(
                f"{assignment!r} beside {dict(groups.shape)} devices per replica. HINT: leave these out, or let them "
                "name the axes of as many devices."
            )
        groups = Groups(groups.shape or assignment.replica_shape, groups.layouts)
    else:
        chosen = MultiWorkerExtended.distinct_devices(settings.sequence("experimental_device_assignment", assignment))
    if not chosen:
        raise DeviceError(f"the device assignment {assignment!r} is empty. HINT: name devices, or pass None for all.")
    strange = [device_name(device) for device in chosen if not is_tpu(device)]
    if strange:
        raise DeviceError(f"{strange} in the device assignment are no TPU devices. HINT: name them 'TPU:0', ...")
    return groups.mesh(chosen, cluster if several else None)
