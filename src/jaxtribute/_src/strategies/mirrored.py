"""`MirroredStrategy`: synchronous training on several devices of one machine."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from jaxtribute._src import settings
from jaxtribute._src.backend import prepare_cpu_backend
from jaxtribute._src.collectives.cross_device_ops import CrossDeviceOps
from jaxtribute._src.devices import default_devices, strategy_devices
from jaxtribute._src.strategies.base import Strategy
from jaxtribute._src.strategies.extended import StrategyExtended
from jaxtribute._src.values.mesh import ReplicaMesh
from jaxtribute.errors import ArgumentTypeError, DeviceError


class MirroredStrategy(Strategy):
    """Keeps a copy of every variable on each device and runs one replica on each, in step.

    Args:
      devices: TensorFlow's names of the devices, or JAX devices, one replica each. By default (None or empty)
        all accelerators, or all (logical) CPU devices where there is none.
      cross_device_ops: how values are reduced between devices; by default what XLA does best.

    Raises:
      DeviceError: a device that does not exist, or one that is named twice.
      ArgumentTypeError: a single string instead of a list, or `cross_device_ops` that are none.

    Source: `tf.distribute.MirroredStrategy`.
    """

    def __init__(
        self,
        devices: Sequence[str | jax.Device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
    ) -> None:
        super().__init__(StrategyExtended(local_mesh(devices, cross_device_ops), cross_device_ops))


def local_mesh(
    devices: Sequence[str | jax.Device] | None, cross_device_ops: CrossDeviceOps | None = None
) -> ReplicaMesh:
    """The devices of this machine that a strategy's arguments name, by default all; see `MirroredStrategy`."""
    prepare_cpu_backend()
    named = () if devices is None else settings.sequence("devices", devices)
    chosen = distinct_devices(named) if named else default_devices()
    if cross_device_ops is not None and not isinstance(cross_device_ops, CrossDeviceOps):
        raise ArgumentTypeError(
            f"cross_device_ops is {cross_device_ops!r}, a {type(cross_device_ops).__name__}. "
            "HINT: pass an object such as jd.NcclAllReduce()."
        )
    return ReplicaMesh(chosen)


def distinct_devices(devices: Sequence[str | jax.Device]) -> tuple[jax.Device, ...]:
    """The JAX devices that `devices` names, one replica each.

    Raises:
      DeviceError: a device that does not exist, or one that is named twice.
    """
    chosen = strategy_devices(devices)
    if len(set(chosen)) < len(chosen):
        raise DeviceError(f"a device is named twice in {list(devices)}. HINT: one replica a device.")
    return chosen
