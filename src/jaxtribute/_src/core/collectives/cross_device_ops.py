"""`CrossDeviceOps`: how a strategy reduces values between devices, and the algorithms to choose from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from operator import add
from typing import Any

import jax

from jaxtribute._src.core import points, settings
from jaxtribute._src.core.collectives.cross_replica import as_array, reduce_many, reduce_value
from jaxtribute._src.core.collectives.destinations import parse_destinations, put
from jaxtribute._src.core.collectives.options import CommunicationOptions
from jaxtribute._src.core.collectives.summation import (
    AutoSum,
    OneDeviceSum,
    PackedSum,
    Packs,
    SharingSum,
    Summation,
    TreeSum,
)
from jaxtribute._src.core.devices import resolve_device
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.types import Device, Leaf, Numeric
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica
from jaxtribute._src.core.values.enums import ReduceOp, ReduceOpLike, reduction_of
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute._src.core.values.sparse import refuse_sparse
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentError, ArgumentTypeError


class CrossDeviceOps:
    """An algorithm that reduces values over the replicas and broadcasts them; given to `MirroredStrategy`.

    For an algorithm of your own subclass it and write `summation`, which serves compiled programs and eager code
    alike. The other methods may be overridden to change what happens outside compiled programs.

    Examples:
      >>> class Doubling(jd.CrossDeviceOps):
      ...     def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
      ...         return 2 * sum(per_replica_value.values)
      >>> strategy = jd.MirroredStrategy(2, cross_device_ops=Doubling())

    Source: `tf.distribute.CrossDeviceOps`.
    """

    def summation(self, mesh: ReplicaMesh, options: CommunicationOptions | None) -> Summation:
        """Way to add arrays up in one replica's program; by default the fastest that XLA has.

        Args:
          mesh: the devices of the replicas.
          options: hints given with the call.
        """
        return AutoSum.of(mesh)

    def reduce(
        self,
        reduce_op: ReduceOpLike,
        per_replica_value: Leaf,
        destinations: Leaf,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Reduces a value over the replicas, in cross-replica context.

        Args:
          reduce_op: `ReduceOp.SUM`, `ReduceOp.MEAN` or their names.
          per_replica_value: a `PerReplica` or `Mirrored` value, or a variable of several replicas.
          destinations: a variable, distributed value, array or device's name: where the result goes.
          options: hints.

        Returns:
          A `Mirrored` value where the destination has several devices, else an array.

        Raises:
          ArgumentTypeError: no distributed value, or destinations that name several devices in a list.
          ArgumentError: an unknown operation.

        Source: `tf.distribute.CrossDeviceOps.reduce`.
        """
        value = _distributed(per_replica_value)
        parse_destinations(destinations, value.mesh)
        return self.reduce_implementation(ReduceOp.parse(reduce_op), value, destinations, options)

    def batch_reduce(
        self,
        reduce_op: ReduceOpLike,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Reduces several values at once, so that small ones can travel together.

        Args:
          reduce_op: as for `reduce`.
          value_destination_pairs: pairs of a distributed value and its destinations.
          options: hints, such as the size of a pack.

        Returns:
          The results in the order of the pairs.

        Source: `tf.distribute.CrossDeviceOps.batch_reduce`.
        """
        pairs = [(_distributed(value), destinations) for value, destinations in value_destination_pairs]
        # Destinations that are none are refused before the first value is reduced.
        for value, destinations in pairs:
            parse_destinations(destinations, value.mesh)
        # No pairs, no result; and no mesh to reduce over, which the values would tell.
        return self.batch_reduce_implementation(ReduceOp.parse(reduce_op), pairs, options) if pairs else []

    def broadcast(self, tensor: Numeric, destinations: Leaf) -> Any:
        """Copies an array to the destinations.

        Returns:
          A `Mirrored` value where the destination has several devices, else an array.

        Source: `tf.distribute.CrossDeviceOps.broadcast`.
        """
        return self.broadcast_implementation(tensor, destinations)

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: PerReplica | Mirrored,
        destinations: Leaf,
        options: CommunicationOptions | None,
    ) -> Any:
        """Reduces one value; called by `reduce` with checked arguments."""
        return self.batch_reduce_implementation(reduce_op, [(per_replica_value, destinations)], options)[0]

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[PerReplica | Mirrored, Any]],
        options: CommunicationOptions | None,
    ) -> list[Any]:
        """Reduces several values; called by `batch_reduce` with checked arguments."""
        mesh = value_destination_pairs[0][0].mesh
        spread = [value for value, _ in value_destination_pairs if isinstance(value, PerReplica)]
        # All in one program, in which small arrays share collectives. Mirrored values need none.
        summed = iter(
            reduce_many(list(map(as_array, spread)), reduce_op, hinted_sum(self, mesh, options)) if spread else []
        )
        results: list[Any] = []
        for value, destinations in value_destination_pairs:
            is_spread = isinstance(value, PerReplica)
            result = next(summed) if is_spread else reduce_value(value, reduce_op, None, mesh)
            results.append(put(result, parse_destinations(destinations, mesh)))
        return results

    def broadcast_implementation(self, tensor: Numeric, destinations: Leaf) -> Any:
        """Copies a value to all destinations; called by `broadcast`."""
        # Nothing here says which devices the replicas have. The mesh stands in for destinations that name none
        # themselves.
        devices = jax.devices()[:1]
        return put(tensor, parse_destinations(destinations, ReplicaMesh(devices)))


class DefaultCrossDeviceOps(CrossDeviceOps):
    """The fastest reduction of XLA for the devices: one all-reduce for all small arrays, one for each large one."""

    def summation(self, mesh: ReplicaMesh, options: CommunicationOptions | None) -> Summation:
        """All-reduces, packed as the library finds best unless `options` says how."""
        if options is not None and options.bytes_per_pack:
            return PackedSum(Packs(bytes_per_pack=options.bytes_per_pack))
        return AutoSum.of(mesh)


class NcclAllReduce(CrossDeviceOps):
    """All-reduces of packed arrays, by NCCL on GPUs and by what XLA has elsewhere.

    Args:
      num_packs: into how many packs the arrays of one call are put; 0 for none, so that each goes alone.

    Raises:
      ArgumentError: a negative number.

    Examples:
      >>> strategy = jd.MirroredStrategy(2, cross_device_ops=jd.NcclAllReduce())
      >>> strategy.reduce("SUM", strategy.run(lambda: jnp.float32(1)), axis=None)
      Array(2., dtype=float32)

    Source: `tf.distribute.NcclAllReduce`.
    """

    def __init__(self, num_packs: int = 1) -> None:
        self._num_packs = settings.whole("num_packs", num_packs)

    def summation(self, mesh: ReplicaMesh, options: CommunicationOptions | None) -> Summation:
        """All-reduces of packs."""
        return PackedSum(_packs(self._num_packs, options))


class HierarchicalCopyAllReduce(CrossDeviceOps):
    """A reduction in two levels: among neighbours first, then between groups of them, and the result back.

    Point-to-point copies along a tree, for machines whose devices are wired in groups. Works for any number of
    replicas.

    Args:
      num_packs: into how many packs the arrays of one call are put; 0 for none.

    Raises:
      ArgumentError: a negative number.

    Examples:
      >>> strategy = jd.MirroredStrategy(2, cross_device_ops=jd.HierarchicalCopyAllReduce(num_packs=1))
      >>> strategy.reduce("SUM", strategy.run(lambda: jnp.float32(1)), axis=None)
      Array(2., dtype=float32)

    Source: `tf.distribute.HierarchicalCopyAllReduce`.
    """

    def __init__(self, num_packs: int = 1) -> None:
        self._num_packs = settings.whole("num_packs", num_packs)

    def summation(self, mesh: ReplicaMesh, options: CommunicationOptions | None) -> Summation:
        """Copies along a tree."""
        return TreeSum(_packs(self._num_packs, options))


class ReductionToOneDevice(CrossDeviceOps):
    """Copies all values to one device, adds them up there, and copies the result to where it is wanted.

    Args:
      reduce_to_device: the device that adds up: a device's name or a JAX device; by default the first one of the
        destinations. In an all-reduce over replicas it is the replica on that device, or the first.
      accumulation_fn: combines a list of arrays, one a replica, into one; by default their sum. MEAN divides its
        result by the number of replicas.

    Examples:
      >>> ops = jd.ReductionToOneDevice(reduce_to_device="CPU:0")
      >>> strategy = jd.MirroredStrategy(2, cross_device_ops=ops)
      >>> strategy.reduce("SUM", strategy.run(lambda: jnp.float32(1)), axis=None)
      Array(2., dtype=float32)

    Source: `tf.distribute.ReductionToOneDevice`.
    """

    def __init__(
        self,
        reduce_to_device: str | Device | None = None,
        accumulation_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self._device = None if reduce_to_device is None else resolve_device(reduce_to_device)
        self._accumulate = settings.function("accumulation_fn", accumulation_fn, optional=True)

    def summation(self, mesh: ReplicaMesh, options: CommunicationOptions | None) -> Summation:
        """Messages to the replica on the device, and back."""
        # The device may belong to no replica, as the CPU beside accelerators: a program can meet on replicas alone, so
        # the first one adds up.
        root = mesh.devices.index(self._device) // mesh.group_size if self._device in mesh.devices else 0
        return OneDeviceSum(root, self._accumulate)

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: PerReplica | Mirrored,
        destinations: Leaf,
        options: CommunicationOptions | None,
    ) -> Any:
        """Adds up on one device, outside compiled programs, and copies the result."""
        mesh = per_replica_value.mesh
        destination = parse_destinations(destinations, mesh)
        # Arrays of other processes cannot be copied here, and those of a program that is being traced are nowhere yet:
        # for both the program itself must add up.
        local = all(device.process_index == mesh.local_devices[0].process_index for device in mesh.devices)
        if not local or isinstance(per_replica_value.data, Tracer):
            return super().reduce_implementation(reduce_op, per_replica_value, destinations, options)
        device = self._device
        # Where no device is named, the first one that the result goes to adds up.
        if device is None:
            device = destination.devices[0] if isinstance(destination, ReplicaMesh) else destination
        value = per_replica_value if isinstance(per_replica_value, Mirrored) else as_array(per_replica_value)
        # Each component travels once, and to this device alone.
        reduction = reduction_of(reduce_op)
        parts = [jax.device_put(reduction.prepared(part), device) for part in value.values]
        total = fold(add, parts) if self._accumulate is None else self._accumulate(parts)
        return put(reduction.finish(total, mesh.size, value.data.dtype), destination)


def hinted_sum(ops: CrossDeviceOps, mesh: ReplicaMesh, options: CommunicationOptions | None) -> Summation:
    """The sum of cross-device operations, in which large arrays travel in the type that the hints name.

    Raises:
      ArgumentError: the hints name a type, and replicas have several devices, `ops` adds up in a way of its own, or
        what is lost is to be sent later.
    """
    summation = ops.summation(mesh, options)
    wire = None if options is None else options.wire
    if wire is None or wire == "float32" or mesh.size == 1:
        return summation
    if options is not None and options.error_feedback:
        raise ArgumentError(
            "error_feedback is True for sums within steps, which keep nothing from one to the next. HINT: leave it "
            "out, or train on islands: jd.experimental.ElasticStrategy(sync_every=...)."
        )
    if mesh.group:
        raise ArgumentError(
            f"wire is {wire!r} for replicas of {mesh.group_size} devices, whose arrays lie in parts. "
            "HINT: leave wire or devices_per_replica out."
        )
    if not isinstance(summation, (SharingSum, PackedSum)):
        raise ArgumentError(
            f"wire is {wire!r} with {type(ops).__name__}, which adds up in a way of its own ({summation!r}). "
            "HINT: leave wire or cross_device_ops out."
        )
    return points.WIRES.last()(summation, wire)


def _distributed(value: Numeric) -> PerReplica | Mirrored:
    if isinstance(value, Variable):
        value = value.distributed()
    refuse_sparse(value, "a reduction")
    if isinstance(value, (PerReplica, Mirrored)):
        return value
    raise ArgumentTypeError(
        f"cannot reduce {value!r} of type {type(value).__name__}. HINT: pass a distributed value, such as strategy.run "
        "returns."
    )


def _packs(number: int, options: CommunicationOptions | None) -> Packs:
    return Packs(number, options.bytes_per_pack if options is not None else 0)
