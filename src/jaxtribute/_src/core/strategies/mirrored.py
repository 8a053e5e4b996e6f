"""`MirroredStrategy`: synchronous training on several devices of one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtribute._src.core import settings
from jaxtribute._src.core.backend import prepare_cpu_backend
from jaxtribute._src.core.collectives.cross_device_ops import CrossDeviceOps
from jaxtribute._src.core.devices import default_devices, first_devices, strategy_devices
from jaxtribute._src.core.strategies.base import Strategy
from jaxtribute._src.core.strategies.extended import StrategyExtended
from jaxtribute._src.core.strategies.groups import ALONE, Groups
from jaxtribute._src.core.types import Device
from jaxtribute._src.core.values.layouts import LayoutMap
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import ArgumentTypeError, DeviceError


class MirroredStrategy(Strategy):
    """Keeps a copy of every variable on each device and runs one replica on each, in step.

    Args:
      devices: TensorFlow's names of the devices, or JAX devices, those of a replica side by side; or a number:
        the first so many of the default ones. By default (None or empty) all accelerators, or all (logical) CPU
        devices if there is none.
      cross_device_ops: how values are reduced between devices; by default what XLA does best.
      devices_per_replica: number of devices of each replica, which hold variables in parts by `layout` and divide its
        work, for models larger than a device; an axis named "model". By default 1.
      replica_shape: several such axes, with names and lengths: `{"model": 2, "sequence": 2}`.
      layout: a `jd.LayoutMap` (or Keras's, or a dictionary): how variables lie on the devices of a replica, by name.
        "auto" chooses by the program: see `jd.experimental.AutomaticLayout`.

    Raises:
      DeviceError: a device that does not exist, one that is named twice, or a number of them that cannot be divided
        into replicas.
      ArgumentError: a replica shape that contradicts itself.
      ArgumentTypeError: a single string instead of a list, or `cross_device_ops` that are none.

    Examples:
      >>> strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> strategy.num_replicas_in_sync
      2

    Source: `tf.distribute.MirroredStrategy`.
    """

    def __init__(
        self,
        devices: Sequence[str | Device] | int | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        *,
        devices_per_replica: int | None = None,
        replica_shape: Mapping[str, int] | None = None,
        layout: LayoutMap | Mapping[str, Any] | str | None = None,
    ) -> None:
        groups = Groups.of(devices_per_replica, replica_shape, layout)
        mesh = local_mesh(devices, cross_device_ops, groups)
        super().__init__(StrategyExtended(mesh, cross_device_ops, groups.layouts))


def local_mesh(
    devices: Sequence[str | Device] | int | None,
    cross_device_ops: CrossDeviceOps | None = None,
    groups: Groups = ALONE,
) -> ReplicaMesh:
    """The devices of this machine that a strategy's arguments name, by default all; see `MirroredStrategy`."""
    chosen = chosen_devices("devices", devices)
    if cross_device_ops is not None and not isinstance(cross_device_ops, CrossDeviceOps):
        raise ArgumentTypeError(
            f"cross_device_ops is {cross_device_ops!r}, a {type(cross_device_ops).__name__}. "
            "HINT: pass an object such as jd.NcclAllReduce()."
        )
    return groups.mesh(chosen)


def chosen_devices(setting: str, devices: Sequence[str | Device] | int | None) -> tuple[Device, ...]:
    """Returns the devices that a strategy's setting names or counts, by default all.

    Raises:
      ArgumentError: a number below 1.
      ArgumentTypeError: a single string instead of a list.
      DeviceError: a device that does not exist, one that is named twice, or a larger number than there is.
    """
    # First of all: the pool of threads of the CPU backend has one size for good once a device is asked for.
    prepare_cpu_backend()
    if isinstance(devices, int):
        return first_devices(settings.whole(setting, devices, least=1))
    named = () if devices is None else settings.sequence(setting, devices)
    return distinct_devices(named) if named else default_devices()


def distinct_devices(devices: Sequence[str | Device]) -> tuple[Device, ...]:
    """The JAX devices that `devices` names, one replica each.

    Raises:
      DeviceError: a device that does not exist, or one that is named twice.
    """
    chosen = strategy_devices(devices)
    if len(set(chosen)) < len(chosen):
        raise DeviceError(f"a device is named twice in {list(devices)}. HINT: one replica a device.")
    return chosen
