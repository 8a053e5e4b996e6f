"""`TPUStrategy`: synchronous training on TPU devices, of one host or of a slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from jaxtribute._src import settings
from jaxtribute._src.backend import prepare_cpu_backend
from jaxtribute._src.collectives.options import CommunicationOptions
from jaxtribute._src.devices import default_devices, device_name
from jaxtribute._src.strategies.base import Strategy
from jaxtribute._src.strategies.mirrored import distinct_devices
from jaxtribute._src.strategies.multi_worker import MultiWorkerExtended, join, worker_mesh
from jaxtribute._src.values.mesh import ReplicaMesh
from jaxtribute.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    from jaxtribute._src.cluster.resolvers.base import ClusterResolver
    from jaxtribute._src.cluster.runtime import Cluster

T = TypeVar("T")


class TPUStrategy(Strategy):
    """Keeps a copy of every variable on each TPU device, and runs one replica on each, in step.

    JAX runs the program on every host of a slice, so there is nothing to connect or initialise first: this makes the
    hosts known to each other, where the resolver names several, and takes all TPU devices that JAX finds.

    It has been tested with CPU devices standing in, through `jd.config.alias_devices({"TPU:0": "CPU:0", ...})`, and
    has not been run on a TPU.

    Args:
      tpu_cluster_resolver: says who the hosts are; by default this host alone, or the cluster that it has joined.
      experimental_device_assignment: the device of each replica, names or JAX devices, in replica order; by default
        all, host by host.
      experimental_spmd_xla_partitioning: accepted for compatibility; one replica has one device.

    Raises:
      DeviceError: there is no TPU, or the assignment names a device twice or one that does not exist.
      ClusterError: the hosts have different numbers of devices.
      DeadlineError: hosts did not come in time; it names them.

    Source: `tf.distribute.TPUStrategy`.
    """

    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver | None = None,
        experimental_device_assignment: Sequence[str | jax.Device] | None = None,
        experimental_spmd_xla_partitioning: bool = False,
    ) -> None:
        del experimental_spmd_xla_partitioning
        self._resolver = tpu_cluster_resolver
        cluster = join(tpu_cluster_resolver, None) if tpu_cluster_resolver is not None else None
        prepare_cpu_backend()
        mesh = _mesh(cluster, experimental_device_assignment)
        super().__init__(MultiWorkerExtended(mesh, cluster, CommunicationOptions()))

    @property
    def cluster_resolver(self) -> Any:
        """Resolver that describes the hosts. Source: `tf.distribute.Strategy.cluster_resolver`."""
        return self._resolver

    def experimental_assign_to_logical_device(self, tensor: T, logical_device_id: int) -> T:
        """Returns `tensor`: a replica has one logical device, number 0.

        Raises:
          ArgumentError: another number.

        Source: `tf.distribute.TPUStrategy.experimental_assign_to_logical_device`.
        """
        if logical_device_id != 0:
            raise ArgumentError(
                f"logical device {logical_device_id}: a replica of {self!r} has one device, number 0. HINT: to compute "
                "one replica on several devices use jax.jit with a mesh of your own."
            )
        return tensor

    def experimental_split_to_logical_devices(self, tensor: T, partition_dimensions: Sequence[int]) -> T:
        """Returns `tensor`: it can be split over the one logical device of a replica in one way.

        Args:
          tensor: an array.
          partition_dimensions: into how many parts each axis is split: all 1.

        Raises:
          ArgumentError: a split in more parts, or another number of axes than the array has.

        Source: `tf.distribute.TPUStrategy.experimental_split_to_logical_devices`.
        """
        rank = len(getattr(tensor, "shape", ()))
        if len(partition_dimensions) != rank or any(parts != 1 for parts in partition_dimensions):
            raise ArgumentError(
                f"partition_dimensions {list(partition_dimensions)} for an array of rank {rank}: a replica of {self!r} "
                f"has one device, so it must be {[1] * rank}. HINT: shard over replicas by the batch instead."
            )
        return tensor

    def experimental_replicate_to_logical_devices(self, tensor: T) -> T:
        """Returns `tensor`, which the one logical device of a replica has already.

        Source: `tf.distribute.TPUStrategy.experimental_replicate_to_logical_devices`.
        """
        return tensor


def _mesh(cluster: Cluster | None, assignment: Sequence[str | jax.Device] | None) -> ReplicaMesh:
    """The replicas' devices: those assigned, or all TPU devices."""
    if assignment is not None:
        chosen = distinct_devices(settings.sequence("experimental_device_assignment", assignment))
        if not chosen:
            raise DeviceError(
                f"the device assignment {assignment!r} is empty. HINT: name devices, or pass None for all."
            )
        strange = [device_name(device) for device in chosen if not _is_tpu(device)]
        if strange:
            raise DeviceError(f"{strange} in the device assignment are no TPU devices. HINT: name them 'TPU:0', ...")
        if cluster is None or cluster.workers == 1:
            return ReplicaMesh(chosen)
        return ReplicaMesh(chosen, cluster)
    several = cluster is not None and cluster.workers > 1
    found = tuple(device for device in (jax.devices() if several else default_devices()) if _is_tpu(device))
    if not found:
        raise DeviceError(
            f"there is no TPU device here; the default devices are {[device_name(d) for d in default_devices()]}. "
            "HINT: install jax[tpu] on a TPU host; to try a program without one, let CPU devices stand in: "
            'jd.config.alias_devices({"TPU:0": "CPU:0"}).'
        )
    return worker_mesh(cluster, found)


def _is_tpu(device: jax.Device) -> bool:
    return device.platform == "tpu" or "device:TPU:" in device_name(device)
