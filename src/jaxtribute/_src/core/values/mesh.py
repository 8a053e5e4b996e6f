"""The devices of a strategy's replicas as one JAX mesh: an axis over the replicas, and axes within each of them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from operator import attrgetter
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding, use_abstract_mesh

from jaxtribute._src.core.devices import is_described
from jaxtribute._src.core.jaxprs.core import ArrayImpl, Tracer
from jaxtribute._src.core.types import Device, Function, Nest, Numeric
from jaxtribute._src.core.values.agreement import first_workers
from jaxtribute._src.core.values.described import DescribedArray
from jaxtribute._src.core.values.placing import own, put
from jaxtribute.errors import ArgumentError, DeviceError, VariableError

AXIS = "replica"
"""Name of the mesh axis that runs over the replicas."""

_STEPS_IN_FLIGHT = 16


def reduced(collective: Callable[[Any, str], Any], array: Numeric) -> Any:
    """`collective(array, AXIS)`, a sum over the replicas.

    XLA's compiler for CPUs ends the process at sums of bfloat16 between replicas of several devices: "Invalid binary
    instruction opcode copy", jaxlib 0.10 to 0.12. In float32, as which it adds bfloat16 otherwise, it does not.
    """
    mesh = jax.sharding.get_abstract_mesh()
    on_cpu = mesh.abstract_device is not None and mesh.abstract_device.device_kind == "cpu"
    if on_cpu and AxisType.Auto in mesh.axis_types and array.dtype == jnp.bfloat16:
        return collective(array.astype(jnp.float32), AXIS).astype(array.dtype)
    return collective(array, AXIS)


def unbound(array: Numeric) -> Any:
    """The array where it is, but so that JAX may move it to meet another; only one on one device can be."""
    if isinstance(array, Tracer) or not isinstance(array, jax.Array) or not array.committed:
        return array
    if not isinstance(array.dtype, np.dtype):
        return jax.random.wrap_key_data(unbound(jax.random.key_data(array)), impl=jax.random.key_impl(array))
    if not isinstance(array, ArrayImpl) or len(array.sharding.device_set) > 1:
        return array
    # What is looked at already: the checks take half of the time.
    return ArrayImpl(array.aval, array.sharding, [array], committed=False, _skip_checks=True)


def everywhere(array: jax.Array, mesh: ReplicaMesh) -> jax.Array:
    """The array whole on each device of a mesh; all workers must call it."""
    # Named, and no lambda: JAX keeps what it has compiled by the function's identity. A program in any case: run as
    # Python, where `jax.disable_jit` holds, it would leave the array where it is, and a slice be taken for the value.
    with jax.disable_jit(False):
        return jax.jit(_same, out_shardings=mesh.replicated)(array)


def _same(array: jax.Array) -> jax.Array:
    return array


def _layout_of(array: jax.Array, mesh: Mesh) -> Layout | None:
    """The axes of `mesh` that an array is split over; None if it lies otherwise."""
    where = array.sharding
    if isinstance(where, NamedSharding) and where.mesh == mesh:
        return tuple(where.spec)
    return () if where.is_fully_replicated and where.device_set == set(mesh.devices.flat) else None


class Peers(Protocol):
    """The other processes of a mesh, reached beside its devices' collectives."""

    def exchange(self, what: str, text: str, /) -> list[str]:
        """Gives this process's text and returns all processes', in their order; every process must call it.

        Args:
          what: names the call, the same in all processes.
          text: what this process tells the others.
        """
        ...

    def announce(self, what: str, text: str, /) -> None:
        """Tells the processes that come to the same call, at this point of the program, and waits for none.

        Args:
          what: names the call.
          text: what they are told.
        """
        ...

    def announced(self, what: str, rank: int, /) -> str | None:
        """Waits for what another process announces at this point; None if it has gone on without.

        Args:
          what: names the call.
          rank: the process.
        """
        ...

    def entering(self, name: str, collectives: Callable[[], Sequence[str]], /) -> None:
        """Called before a program is handed to the devices of all processes."""
        ...

    def dispatched(self, result: Nest, /) -> None:
        """Called when it was handed over."""
        ...

    def waited(self, seconds: float, /) -> None:
        """Called after a wait for the devices."""
        ...

    def explained(self, error: BaseException, /) -> BaseException:
        """Called with an error of a program; returns the one that tells why, if another worker is the cause."""
        ...


Layout = tuple[Any, ...]
"""The axes within a replica that each axis of an array is split over: a name, a tuple of names, or None."""


def _mesh_again(devices: Sequence[tuple[str, int]], group: Mapping[str, int]) -> ReplicaMesh:
    """The mesh of a pickled value, on this process's devices.

    Raises:
      DeviceError: it has not as many.
    """
    here: dict[tuple[str, int], Device] = {}
    for platform, _ in devices:
        for device in jax.devices(platform):
            here[_key(device)] = device
    missing = [key for key in devices if key not in here]
    if missing:
        raise DeviceError(
            f"a pickled value lies on {devices}, of which this process has no {missing}. HINT: load it where the "
            "devices are, e.g. after jd.config.set_logical_cpu_devices(n), or pickle np.asarray of it."
        )
    return ReplicaMesh(list(map(here.__getitem__, devices)), group=group)


_key = attrgetter("platform", "id")
"""Names a device to another process, which has an object of its own for it."""


class ReplicaMesh:
    """The devices of each replica, in replica order, and the placements that a value can have over them.

    Args:
      devices: the devices, those of a replica side by side, over all workers.
      peers: the other workers, if there are any.
      group: the axes within a replica that has several devices, with their lengths: `{"model": 2}`.

    A mesh of one device uses single-device shardings, so that one replica costs nothing over plain JAX.
    """

    program: Any = None
    """Runner of compiled functions that run replicas here, where `execution.program.Program` cannot be it."""

    def __init__(
        self, devices: Sequence[Device], peers: Peers | None = None, group: Mapping[str, int] | None = None
    ) -> None:
        self.devices: tuple[Device, ...] = tuple(devices)
        self.group: dict[str, int] = dict(group or {})
        """The axes within a replica, and their lengths; empty if a replica has one device."""
        self.group_size: int = math.prod(self.group.values())
        """Number of devices of each replica."""
        self.size: int = len(self.devices) // self.group_size
        """Number of replicas."""
        self.peers = peers
        # Several threads may count: to take the next number is one call of C.
        self._calls = itertools.count(1)
        # XLA's CPU collectives starve its thread pool when too many steps are in flight.
        self.described: bool = is_described(self.devices[0])
        """True if programs for the devices are compiled and not run; what lies on them are `DescribedArray`s."""
        self._bounded = len(self.devices) > 1 and self.devices[0].platform == "cpu"

    def __repr__(self) -> str:
        group = f", group={self.group}" if self.group else ""
        return f"ReplicaMesh({list(map(str, self.devices))}{group})"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, ReplicaMesh) and self.devices == other.devices and self.group == other.group

    def __hash__(self) -> int:
        return self._hash

    def __deepcopy__(self, memo: dict[int, Any]) -> ReplicaMesh:
        return self

    def __reduce__(self) -> Any:
        if self.peers is not None:
            raise VariableError(
                f"{self!r} spans several workers, and what lies on it cannot be pickled. "
                "HINT: pickle np.asarray of the value, or save a jd.Checkpoint."
            )
        return _mesh_again, (list(map(_key, self.devices)), self.group)

    @cached_property
    def _hash(self) -> int:
        # Kept, as a mesh is a static argument of kernels, which are looked up by it in every call.
        return hash(self.devices)

    def check_whole(self, shape: tuple[int, ...], where: Sharding) -> None:
        """Refuses an array that is not whole on each replica, as another library has divided it.

        What is computed of variables in slices lies in parts too, on this mesh; its user knows it as a whole array.

        Raises:
          ArgumentError: it lies in parts; nothing says what each replica is to get.
        """
        if where.is_fully_replicated or (isinstance(where, NamedSharding) and where.mesh == self.mesh):
            return
        parts = where.devices_indices_map(shape)
        by_replica = {str([parts.get(device) for device in self.devices_of(each)]) for each in range(self.size)}
        if len(by_replica) == 1 and parts.keys() <= set(self.devices):
            return
        raise ArgumentError(
            f"an array of shape {shape} lies in parts on {len(where.device_set)} devices ({where}), and strategy.run "
            "gives every replica the whole of an array. HINT: to give each replica a part, pass a batch of "
            "strategy.experimental_distribute_dataset, or parts from "
            "strategy.experimental_distribute_values_from_function; to give each the whole, pass np.asarray(array)."
        )

    @property
    def in_tiles(self) -> bool:
        """True if the devices keep arrays in tiles of rows and columns, as TPUs do."""
        return self.devices[0].platform == "tpu"

    @cached_property
    def mesh(self) -> Mesh:
        """The JAX mesh: an axis named `AXIS` of length `size`, and the axes of `group` after it."""
        devices = np.array(self.devices, dtype=object).reshape(self.size, *self.group.values())
        return Mesh(devices, (AXIS, *self.group))

    def within(self) -> AbstractContextManager[Any]:
        """Lets what is traced name the axes within a replica, as `map_replicas` will run it; nothing without groups."""
        if not self.group:
            return nullcontext()
        # What is traced for one replica is traced outside `shard_map`: JAX has to be told what will hold there.
        manual = self.mesh.abstract_mesh.update_axis_types({AXIS: AxisType.Manual})
        return use_abstract_mesh(manual)

    def map_replicas(self, program: Function, in_specs: Any, out_specs: Any) -> Function:
        """Makes the program of one replica one of all, by `jax.shard_map`.

        The axes within a replica are left to the compiler, which divides the replica's work by its arrays' layouts.

        Args:
          program: the program of one replica.
          in_specs: `PartitionSpec`s over `AXIS` of the inputs; see `jax.shard_map`.
          out_specs: those of the outputs.
        """
        # Everything inside is local to a replica and every collective is written out, so JAX need not follow which
        # values vary: it would refuse programs that the library has checked itself.
        return jax.shard_map(
            program, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, axis_names={AXIS}, check_vma=False
        )

    @cached_property
    def replicated(self) -> Sharding:
        """The placement of a mirrored value: a full copy on every device."""
        return self.laid_out(())

    @cached_property
    def split(self) -> Sharding:
        """The placement of a per-replica value: equal slices of axis 0, one a replica."""
        return self.laid_out((AXIS,))

    def laid_out(self, layout: Layout) -> Sharding:
        """The placement of an array that is split over axes of the mesh, `AXIS` or those within a replica."""
        if len(self.devices) == 1:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec(*layout))

    @cached_property
    def local_ids(self) -> tuple[int, ...]:
        """The ids of the replicas that have devices of this process."""
        return tuple(filter(self._own_devices, range(self.size)))

    @cached_property
    def local_devices(self) -> tuple[Device, ...]:
        """The first device that this process has of each of `local_ids`, in order."""
        return tuple(self._own_devices(replica)[0] for replica in self.local_ids)

    @cached_property
    def local_places(self) -> tuple[Device | Sharding, ...]:
        """The places of the arrays of `local_ids`: a device, or a copy on each of a replica's devices."""
        if not self.group:
            return self.local_devices
        return tuple(NamedSharding(mesh, PartitionSpec()) for mesh in self._local_meshes)

    @cached_property
    def _local_meshes(self) -> tuple[Mesh, ...]:
        """The mesh of each of `local_ids`: the axes of `group`."""
        return tuple(Mesh(self.mesh.devices[replica], tuple(self.group)) for replica in self.local_ids)

    def local_layout(self, index: int, layout: Layout) -> Sharding:
        """The place of an array of one of `local_ids` that is split over axes within the replica."""
        return NamedSharding(self._local_meshes[index], PartitionSpec(*layout))

    def devices_of(self, replica: int) -> tuple[Device, ...]:
        """The devices of one replica."""
        return self.devices[replica * self.group_size : (replica + 1) * self.group_size]

    def _own_devices(self, replica: int) -> Sequence[Device]:
        """The devices of one replica that this process has; of a mesh that is only described, all."""
        devices = self.devices_of(replica)
        if self.described:
            return devices
        # Of the devices' own backend: another one of this process may number its processes otherwise.
        process = jax.process_index(self.devices[0].client)
        return [device for device in devices if device.process_index == process]

    @cached_property
    def workers_per_replica(self) -> int:
        """Number of workers that the devices of one replica belong to."""
        return len({device.process_index for device in self.devices[: self.group_size]})

    @cached_property
    def of_devices(self) -> ReplicaMesh:
        """The mesh in which each device is a replica of its own."""
        return ReplicaMesh(self.devices, self.peers) if self.group else self

    @cached_property
    def local_numbers(self) -> tuple[jax.Array, ...]:
        """The ids of `local_ids` as int32 scalars, each on its replica's device; in one process bound to none."""
        numbers = map(put, map(np.int32, self.local_ids), self.local_places)
        return tuple(numbers if self.peers is not None else map(unbound, numbers))

    def agreed(self, value: Numeric, what: str, settings: str) -> Any:
        """The first worker's `value`, which others may have computed differently; all must call it.

        Args:
          value: an array. One of which other workers hold parts, or that is traced, is the same already.
          what: names the value in messages.
          settings: what else must be the same on all workers, in words.

        Raises:
          ShapeError: its shape, dtype or settings differ between workers.
        """
        if self.peers is None or isinstance(value, Tracer) or not getattr(value, "is_fully_addressable", True):
            return value
        return first_workers(value, what, self, self.peers, settings)

    def replicate(self, value: Numeric) -> jax.Array:
        """Returns a fresh copy of `value` on every device, sharing memory with nothing."""
        return own(value, self.replicated)

    def assemble(self, parts: Sequence[jax.Array]) -> jax.Array:
        """Joins one array a local replica, equal in shape and dtype, into one global array without a copy.

        Args:
          parts: an array of shape `s` for each local replica, each in its replica's place.

        Returns:
          An array of shape `(size * s[0], *s[1:])`, or `(size,)` for scalars, placed as `split`.
        """
        if self.described:
            return DescribedArray(
                (self.size * (np.shape(parts[0]) or (1,))[0], *np.shape(parts[0])[1:]), parts[0].dtype, self.split
            )
        if self.size == 1:
            return parts[0].reshape(1) if parts[0].ndim == 0 else parts[0]
        shape = parts[0].shape
        if not shape:
            # A global array is cut along an axis, of which scalars have none.
            parts = [part.reshape(1) for part in parts]
            shape = (1,)
        # What is traced lies nowhere yet: an operation joins it.
        if any(isinstance(part, Tracer) for part in parts):
            return jnp.concatenate(parts)
        whole = (self.size * shape[0], *shape[1:])
        if not self.group:
            return jax.make_array_from_single_device_arrays(whole, self.split, list(parts))
        return self._joined(whole, parts, over_replicas=True)

    def assemble_plain(self, parts: Sequence[Any]) -> jax.Array | None:
        """Joins like `assemble`, in a fourth of the time, parts that lie where they are to be; None for others."""
        first = parts[0]
        if type(first) is not ArrayImpl or not first.ndim or self.group or self.size != len(parts) or self.size == 1:
            return None
        shape, dtype = first.shape, first.dtype
        if not isinstance(dtype, np.dtype):
            return None
        for part, device in zip(parts, self.local_devices, strict=True):
            if type(part) is not ArrayImpl or part.shape != shape or part.dtype != dtype:
                return None
            if type(part.sharding) is not SingleDeviceSharding or device not in part.sharding.device_set:
                return None
        # JAX's own description of such an array, and what is looked at already: the checks take most of the time.
        aval = self._avals.get((shape, dtype))
        if aval is None:
            whole = self.assemble(parts)
            self._avals[shape, dtype] = whole.aval
            return whole
        return ArrayImpl(aval, self.split, [*parts], committed=True, _skip_checks=True)

    @cached_property
    def _avals(self) -> dict[Any, Any]:
        """JAX's descriptions of the arrays that parts of a shape and dtype form."""
        return {}

    def join_copies(self, copies: Sequence[jax.Array]) -> jax.Array:
        """Joins equal arrays, one a local replica in its replica's place, into one mirrored array without a copy."""
        shape = copies[0].shape
        if not self.group:
            return jax.make_array_from_single_device_arrays(shape, self.replicated, list(copies))
        return self._joined(shape, copies, over_replicas=False)

    def _joined(self, shape: tuple[int, ...], parts: Sequence[jax.Array], *, over_replicas: bool) -> jax.Array:
        """One array of those of replicas of several devices; whole on each device where their layouts differ."""
        # A global array has one layout. Replicas whose parts lie differently are brought to the simplest one.
        layouts = set(map(_layout_of, parts, self._local_meshes))
        layout = layouts.pop() if len(layouts) == 1 else None
        if layout is None or (over_replicas and layout[:1] not in ((), (None,))):
            parts = list(map(put, parts, self.local_places))
            layout = ()
        if over_replicas:
            layout = (AXIS, *layout[1:])
        shards = [shard.data for part in parts for shard in part.addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, self.laid_out(layout), shards)

    def local_parts(self, array: jax.Array) -> list[jax.Array]:
        """The pieces of `array` of this process's replicas, in replica order, without a copy."""
        if self.size == 1:
            return [array]
        if isinstance(array, DescribedArray):
            return [array.on(device) for device in self.devices[:: self.group_size]]
        if self.group:
            return self._parts_on_groups(array)
        # By device: JAX lists shards in an order of its own, which need not be that of the replicas.
        pieces = {shard.device: shard.data for shard in array.addressable_shards}
        return list(map(pieces.__getitem__, self.local_devices))

    def _parts_on_groups(self, array: jax.Array) -> list[jax.Array]:
        """The pieces of `array` as arrays on the devices of one replica each, split there as they are."""
        # Replicas cut axis 0 alone, so that each has a plain piece; the other axes are left to the devices within them.
        layout = _layout_of(array, self.mesh)
        if layout is None or AXIS in layout[1:]:
            raise DeviceError(
                f"an array of shape {array.shape} lies by {array.sharding} and not over {self!r}. "
                "HINT: use values that this strategy has placed."
            )
        shape, within = array.shape, layout
        if layout[:1] == (AXIS,):
            shape, within = (array.shape[0] // self.size, *array.shape[1:]), (None, *layout[1:])
        pieces: dict[Device, Any] = {shard.device: shard.data for shard in array.addressable_shards}
        parts: list[jax.Array] = []
        for index, replica in enumerate(self.local_ids):
            own_pieces = list(map(pieces.__getitem__, self._own_devices(replica)))
            parts.append(jax.make_array_from_single_device_arrays(shape, self.local_layout(index, within), own_pieces))
        return parts

    def entering(self, name: str, collectives: Callable[[], Sequence[str]]) -> None:
        """Tells the other workers' watchers what this one is about to run on all replicas, if there are any."""
        if self.peers is not None:
            self.peers.entering(name, collectives)

    def explain(self, error: Exception) -> None:
        """Raises why a program of all workers broke, if another one is known to be the cause; called as it breaks."""
        if self.peers is not None:
            told = self.peers.explained(error)
            if told is not error:
                raise told from error

    @property
    def throttles(self) -> bool:
        """True if `throttle` does anything."""
        return self._bounded or self.peers is not None

    def throttle(self, computed: Callable[[], Any]) -> None:
        """Waits for `computed()` at every 16th call, where unbounded dispatch could starve the device's threads."""
        if self.peers is not None:
            self.peers.dispatched(computed())
        # Each launch in flight holds a thread of XLA's pool. When all are held by later steps the current one, whose
        # devices wait for each other, never ends.
        if self._bounded and not next(self._calls) % _STEPS_IN_FLIGHT:
            start, result = time.monotonic(), computed()
            try:
                jax.block_until_ready(result)
            except (RuntimeError, ValueError) as error:
                # Another thread's step has taken the arrays over, and will wait for its own.
                if not any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(result)):
                    self.explain(error)
                    raise
            if self.peers is not None:
                self.peers.waited(time.monotonic() - start)
