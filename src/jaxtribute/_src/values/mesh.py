"""The devices of a strategy's replicas as one JAX mesh with a single axis."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxtribute._src.jaxprs.core import ArrayImpl, Tracer
from jaxtribute._src.types import Nest, Numeric
from jaxtribute._src.values.agreement import first_workers
from jaxtribute._src.values.described import DescribedArray, is_described
from jaxtribute.errors import DeviceError, VariableError

AXIS = "replica"
"""Name of the mesh axis that runs over the replicas."""

_STEPS_IN_FLIGHT = 16
_SMALL_BYTES = 1 << 20
_ALIGNED = 64
"""The multiple of bytes at which an array on the host must begin for JAX to use its memory as it is."""


def own(value: Numeric, where: Sharding | jax.Device | None = None) -> jax.Array:
    """A copy of an array or number in device memory of its own, so that it can be donated.

    Neither `jax.device_put` alone does it (it keeps what is in place already, and may use a host array's memory,
    also with `may_alias=False`) nor a copy on the host, whose memory XLA cannot take over either.

    Args:
      value: the array; one on the host may change as soon as this returns.
      where: where the copy lies; by default on the device where the array is, or JAX's default.
    """
    if where is not None and _only_described(where):
        return put(value, where)
    host = _small_host(value, where)
    if host is not None:
        return jax.device_put(host) if where is None else put(host, where)
    array = (jnp.asarray(value) if where is None else put(value, where)).copy()
    return array if isinstance(value, jax.Array) else jax.block_until_ready(array)


def _small_host(value: Numeric, where: Sharding | jax.Device | None) -> np.ndarray[Any, Any] | None:
    """A copy of `value` at an address whose memory JAX cannot use; None for what is large or has to be cut.

    What JAX copies by itself needs no program: many small variables of many shapes would compile one for each.
    """
    if isinstance(where, Sharding) and not where.is_fully_replicated:
        return None
    if isinstance(value, Tracer) or not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return None
    if not (jnp.issubdtype(value.dtype, np.number) or value.dtype == bool) or value.nbytes > _SMALL_BYTES:
        return None
    if isinstance(value, jax.Array):
        on_host = value.is_fully_addressable and value.is_fully_replicated and _platform(value) == "cpu"
        if where is None or not on_host or value.weak_type:
            return None
        value = value.addressable_data(0)
    array = _canonical(np.asarray(value))
    memory = np.empty(array.nbytes + 2 * _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED + _ALIGNED // 8
    host = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    host[...] = array
    return host


def _canonical(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`array` with the dtype that JAX gives it."""
    return np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))


def _platform(array: jax.Array) -> str:
    return next(iter(array.devices())).platform


def put(value: Numeric, where: Sharding | jax.Device) -> jax.Array:
    """`value` on the devices of `where`, of which other processes may have some; it may share memory with `value`.

    Every process gives the same value, and puts its own part. `jax.device_put` would compare them over all
    processes, which costs a collective, and cannot be done in a thread beside others.
    """
    if _only_described(where):
        sharding = SingleDeviceSharding(where) if isinstance(where, jax.Device) else where
        return DescribedArray(np.shape(value), jax.dtypes.canonicalize_dtype(jnp.result_type(value)), sharding)
    if isinstance(where, jax.Device) or where.is_fully_addressable:
        return jax.device_put(value, where)
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return jax.device_put(value, where)
    host = _canonical(value) if isinstance(value, np.ndarray) else np.asarray(jnp.asarray(value))
    return jax.make_array_from_callback(host.shape, where, lambda index: host[index])


def _only_described(where: Sharding | jax.Device) -> bool:
    return is_described(where if isinstance(where, jax.Device) else next(iter(where.device_set)))


def unbound(array: Numeric) -> Any:
    """The array where it is, but so that JAX may move it to meet another; only one on one device can be."""
    if isinstance(array, Tracer) or not isinstance(array, jax.Array) or not array.committed:
        return array
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return jax.random.wrap_key_data(unbound(jax.random.key_data(array)), impl=jax.random.key_impl(array))
    if len(array.sharding.device_set) > 1:
        return array
    # What is looked at already: the checks take half of the time.
    return ArrayImpl(array.aval, array.sharding, [array], committed=False, _skip_checks=True)


class Peers(Protocol):
    """The other processes of a mesh, reached beside its devices' collectives."""

    def exchange(self, what: str, text: str, /) -> list[str]:
        """Gives this process's text and returns all processes', in their order; every process must call it.

        Args:
          what: names the call, the same in all processes.
          text: what this process tells the others.
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


def _mesh_again(devices: Sequence[tuple[str, int]]) -> ReplicaMesh:
    """The mesh of a pickled value, on this process's devices.

    Raises:
      DeviceError: it has not as many.
    """
    here = {(device.platform, device.id): device for platform, _ in devices for device in jax.devices(platform)}
    missing = [key for key in devices if key not in here]
    if missing:
        raise DeviceError(
            f"a pickled value lies on {devices}, of which this process has no {missing}. HINT: load it where the "
            "devices are, e.g. after jd.config.set_logical_cpu_devices(n), or pickle np.asarray of it."
        )
    return ReplicaMesh([here[key] for key in devices])


class ReplicaMesh:
    """One device a replica, in replica order, and the two placements a value can have over them.

    Args:
      devices: the device of each replica, over all workers.
      peers: the other workers, where there are any.

    A mesh of one device uses single-device shardings, so that one replica costs nothing over plain JAX.
    """

    def __init__(self, devices: Sequence[jax.Device], peers: Peers | None = None) -> None:
        self.devices = tuple(devices)
        self.size = len(self.devices)
        self.peers = peers
        self._calls = itertools.count(1)
        # XLA's CPU collectives starve its thread pool when too many steps are in flight.
        self.described = is_described(self.devices[0])
        """True if programs for the devices are compiled and not run; what lies on them are `DescribedArray`s."""
        self._bounded = self.size > 1 and self.devices[0].platform == "cpu"

    def __repr__(self) -> str:
        return f"ReplicaMesh({[str(device) for device in self.devices]})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ReplicaMesh) and self.devices == other.devices)

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
        return _mesh_again, ([(device.platform, device.id) for device in self.devices],)

    @cached_property
    def _hash(self) -> int:
        return hash(self.devices)

    @cached_property
    def mesh(self) -> Mesh:
        """The JAX mesh: one axis, named `AXIS`, of length `size`."""
        return Mesh(np.array(self.devices, dtype=object), (AXIS,))

    @cached_property
    def replicated(self) -> Sharding:
        """The placement of a mirrored value: a full copy on every device."""
        return SingleDeviceSharding(self.devices[0]) if self.size == 1 else NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def split(self) -> Sharding:
        """The placement of a per-replica value: equal slices of axis 0, one a device."""
        if self.size == 1:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    @cached_property
    def local_ids(self) -> tuple[int, ...]:
        """The ids of the replicas whose devices belong to this process."""
        if self.described:
            return tuple(range(self.size))
        process = jax.process_index(self.devices[0].client)
        return tuple(i for i, device in enumerate(self.devices) if device.process_index == process)

    @cached_property
    def local_devices(self) -> tuple[jax.Device, ...]:
        """The devices of `local_ids`, in order."""
        return tuple(self.devices[i] for i in self.local_ids)

    @cached_property
    def local_numbers(self) -> tuple[jax.Array, ...]:
        """The ids of `local_ids` as int32 scalars, each on its replica's device."""
        return tuple(
            jax.device_put(np.int32(i), device) for i, device in zip(self.local_ids, self.local_devices, strict=True)
        )

    def agreed(self, value: Numeric, what: str) -> Any:
        """The first worker's `value`, which others may have computed differently; all must call it.

        Args:
          value: an array on the host, or on devices of this process.
          what: names the value in messages.

        Raises:
          ShapeError: its shape or dtype differs between workers.
        """
        if self.peers is None:
            return value
        return first_workers(value, what, self, self.peers)

    def replicate(self, value: Numeric) -> jax.Array:
        """Returns a fresh copy of `value` on every device, sharing memory with nothing."""
        return own(value, self.replicated)

    def assemble(self, parts: Sequence[jax.Array]) -> jax.Array:
        """Joins one array a local replica, equal in shape and dtype, into one global array without a copy.

        Args:
          parts: an array of shape `s` for each local replica, each on its replica's device.

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
            parts = [part.reshape(1) for part in parts]
            shape = (1,)
        if any(isinstance(part, Tracer) for part in parts):
            return jnp.concatenate(parts)
        whole = (self.size * shape[0], *shape[1:])
        return jax.make_array_from_single_device_arrays(whole, self.split, list(parts))

    def local_parts(self, array: jax.Array) -> list[jax.Array]:
        """The pieces of `array` on this process's devices, in replica order, without a copy."""
        if self.size == 1:
            return [array]
        if isinstance(array, DescribedArray):
            return [array.on(device) for device in self.devices]
        pieces = {shard.device: shard.data for shard in array.addressable_shards}
        return [pieces[device] for device in self.local_devices]

    def entering(self, name: str, collectives: Callable[[], Sequence[str]]) -> None:
        """Tells the other workers' watchers what this one is about to run on all replicas, if there are any."""
        if self.peers is not None:
            self.peers.entering(name, collectives)

    @property
    def throttles(self) -> bool:
        """True if `throttle` does anything."""
        return self._bounded or self.peers is not None

    def throttle(self, computed: Callable[[], Any]) -> None:
        """Waits for `computed()` at every 16th call, where unbounded dispatch could starve the device's threads."""
        if self.peers is not None:
            self.peers.dispatched(computed())
        if self._bounded and not next(self._calls) % _STEPS_IN_FLIGHT:
            start, result = time.monotonic(), computed()
            try:
                jax.block_until_ready(result)
            except RuntimeError:
                # Another thread's step has taken the arrays over, and will wait for its own.
                if not any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(result)):
                    raise
            if self.peers is not None:
                self.peers.waited(time.monotonic() - start)
