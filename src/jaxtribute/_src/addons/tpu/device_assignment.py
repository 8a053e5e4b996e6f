"""`DeviceAssignment`: which devices make up which replica, by their coordinates, as TensorFlow describes it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from jaxtribute.errors import ArgumentTypeError, DeviceError, ShapeError
from jaxtribute.extending import default_devices, device_name, resolve_device, settings
from jaxtribute.typing import Device, Foreign, HostArray

_AXES = ("x", "y", "z", "core")
"""The coordinates of a core: those of its chip, and its number there."""


class Topology:
    """The devices of a TPU system by their coordinates: those of a chip, and the number of a core there.

    Devices that tell no coordinates, such as CPU devices that stand in, count as chips of two cores along x.

    Args:
      devices: TensorFlow's names of the devices, or JAX devices.

    Raises:
      DeviceError: there is none, or one that does not exist.
      ArgumentTypeError: a single string instead of a list.

    Source: `tf.tpu.experimental.Topology`.
    """

    def __init__(self, devices: Sequence[str | Device]) -> None:
        found: list[Device] = list(map(_device, settings.sequence("devices", devices)))
        if not found:
            raise DeviceError("a topology of no devices. HINT: pass jax.devices().")
        # For devices without coordinates, as CPUs that stand in for TPUs: chips of two cores, where they come out even.
        cores = 2 if len(found) % 2 == 0 else 1
        self._by_place = {_coordinates(device, i, cores): device for i, device in enumerate(found)}
        if len(self._by_place) < len(found) or len(set(found)) < len(found):
            raise DeviceError(f"{found} share coordinates. HINT: list each device once.")

    @property
    def devices(self) -> Mapping[tuple[int, int, int, int], Device]:
        """The device at each of the coordinates `(x, y, z, core)`."""
        return dict(self._by_place)

    @property
    def mesh_shape(self) -> HostArray:
        """The length of each axis, an array of shape `(4,)`."""
        return np.max(np.array(list(self._by_place)), axis=0) + 1

    @property
    def mesh_rank(self) -> int:
        """The number of axes: 4."""
        return len(_AXES)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.mesh_shape))
        return f"<jd.experimental.Topology of {len(self._by_place)} devices, {shape}>"


class DeviceAssignment:
    """The devices of each replica, for `jd.TPUStrategy(experimental_device_assignment=...)`.

    Args:
      topology: the devices by their coordinates.
      core_assignment: an integer array of shape `(replicas, devices per replica, 4)` of coordinates.

    Raises:
      ShapeError: an array of another shape.
      DeviceError: coordinates of no device, or of one that is assigned already.
      ArgumentTypeError: no topology.

    Source: `tf.tpu.experimental.DeviceAssignment`.
    """

    def __init__(self, topology: Topology, core_assignment: Foreign) -> None:
        if not isinstance(cast("Any", topology), Topology):
            raise ArgumentTypeError(
                f"topology is {topology!r} of type {type(topology).__name__}. "
                "HINT: pass jd.experimental.Topology(jax.devices())."
            )
        places = np.asarray(core_assignment)
        if places.ndim != 3 or places.shape[-1] != len(_AXES) or not places.size or places.dtype.kind not in "iu":
            raise ShapeError(
                f"core_assignment has shape {places.shape} and dtype {places.dtype}. "
                "HINT: integers of shape (replicas, devices per replica, 4): x, y, z and core of each device."
            )
        self._topology, self._places = topology, places
        self._shape: tuple[int, ...] = (1, 1, 1, places.shape[1])
        known = topology.devices
        # As tuples of Python's ints, which are the keys of a topology and read well in messages.
        flat = list(map(tuple, places.reshape(-1, len(_AXES)).tolist()))
        missing = [place for place in flat if place not in known]
        if missing or len(set(flat)) < len(flat):
            raise DeviceError(
                f"core_assignment names {missing or flat}, where {topology!r} has "
                f"{'no device' if missing else 'each device once'}. HINT: use each device at most once."
            )
        self._devices = tuple(map(known.__getitem__, cast("Any", flat)))

    @classmethod
    def build(
        cls,
        topology: Topology | None = None,
        computation_shape: Sequence[int] | None = None,
        computation_stride: Sequence[int] | None = None,
        num_replicas: int = 1,
    ) -> DeviceAssignment:
        """Divides a topology into blocks, one a replica.

        Args:
          topology: the devices; by default all TPU devices, or those that stand in.
          computation_shape: the size of a replica's block along x, y, z and core; by default one core.
          computation_stride: the distance of a block's devices along each axis; by default 1.
          num_replicas: how many replicas there are.

        Raises:
          DeviceError: the topology has not that many such blocks.
          ShapeError: a shape or stride that is not four numbers.

        Source: `tf.tpu.experimental.DeviceAssignment.build`.
        """
        system = Topology(tpu_devices(default_devices())) if topology is None else topology
        if not isinstance(cast("Any", system), Topology):
            raise ArgumentTypeError(f"topology is {topology!r}. HINT: pass jd.experimental.Topology(jax.devices()).")
        shape, stride = _four("computation_shape", computation_shape), _four("computation_stride", computation_stride)
        count = settings.whole("num_replicas", num_replicas, 1)
        # Within a span of shape * stride devices lie as many blocks, one beside the other.
        spans = [size // (parts * step) for size, parts, step in zip(system.mesh_shape, shape, stride, strict=True)]
        blocks = math.prod(spans) * math.prod(stride)
        if count > blocks:
            raise DeviceError(
                f"{system!r} has room for {blocks} replicas of {shape} devices at a distance of {stride}, not "
                f"{count}. HINT: ask for fewer replicas, or for smaller ones."
            )
        # The devices of one block, by their distance from its first.
        inner = np.array(list(itertools.product(*map(range, shape)))) * stride
        # The last four numbers shift a block by less than its stride, into the gaps that it leaves.
        outer = itertools.product(*map(range, spans), *map(range, stride))
        taken = np.array(list(itertools.islice(outer, count)))
        first = taken[:, :4] * shape * np.array(stride) + taken[:, 4:]
        made = cls(system, first[:, None] + inner)
        # The block's own form, which its list of places no longer shows.
        made._shape = shape
        return made

    @property
    def topology(self) -> Topology:
        """The devices by their coordinates."""
        return self._topology

    @property
    def num_replicas(self) -> int:
        """Number of replicas."""
        return self._places.shape[0]

    @property
    def num_cores_per_replica(self) -> int:
        """Number of devices of each replica."""
        return self._places.shape[1]

    @property
    def core_assignment(self) -> HostArray:
        """The coordinates of each device, of shape `(replicas, devices per replica, 4)`."""
        # A copy, into which the caller may write.
        return self._places.copy()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices, those of a replica behind each other."""
        return self._devices

    @property
    def replica_shape(self) -> dict[str, int]:
        """The axes within a replica: "model" for one, else those of x, y, z and core that a block extends along."""
        axes = {name: size for name, size in zip(_AXES, self._shape, strict=True) if size > 1}
        return {"model": next(iter(axes.values()))} if len(axes) == 1 else axes

    def coordinates(self, replica: int, logical_core: int) -> tuple[int, ...]:
        """Returns the coordinates of a replica's device."""
        return tuple(map(int, self._places[replica, logical_core]))

    def tpu_device(self, replica: int = 0, logical_core: int = 0) -> str:
        """Returns TensorFlow's name of a replica's device."""
        return device_name(self._devices[replica * self.num_cores_per_replica + logical_core])

    def __repr__(self) -> str:
        return f"<jd.experimental.DeviceAssignment of {self.num_replicas} replicas of {self.num_cores_per_replica}>"


def _device(device: Any) -> Any:
    if isinstance(device, str):
        return resolve_device(device)
    if not hasattr(device, "platform"):
        raise DeviceError(f"{device!r} is no device. HINT: pass names such as 'TPU:0', or jax.devices().")
    return device


def _coordinates(device: Device, number: int, cores: int) -> tuple[int, int, int, int]:
    coords = getattr(device, "coords", None)
    if coords is None:
        return (number // cores, 0, 0, number % cores)
    # Where chips lie in a plane there are two coordinates.
    x, y, z = (*map(int, coords), 0, 0)[:3]
    return (x, y, z, int(getattr(device, "core_on_chip", 0)))


def _four(name: str, value: Sequence[int] | None) -> tuple[int, ...]:
    given = (1, 1, 1, 1) if value is None else settings.sequence(name, value)
    if len(given) != len(_AXES):
        raise ShapeError(f"{name} is {value!r}. HINT: four numbers, along x, y, z and core: [1, 1, 1, 2].")
    return tuple(settings.whole(f"{name}[{i}]", one, 1) for i, one in enumerate(given))


def is_tpu(device: Device) -> bool:
    """True if a device is a TPU, or stands in for one."""
    return device.platform == "tpu" or "device:TPU:" in device_name(device)


def tpu_devices(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Finds the TPUs among devices.

    Raises:
      DeviceError: there is none.
    """
    found = tuple(filter(is_tpu, devices))
    if not found:
        raise DeviceError(
            f"there is no TPU device here; the default devices are {list(map(device_name, default_devices()))}. "
            "HINT: install jax[tpu] on a TPU host; to try a program without one, let CPU devices stand in: "
            'jd.config.alias_devices({"TPU:0": "CPU:0"}).'
        )
    return found
