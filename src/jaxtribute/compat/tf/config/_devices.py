"""The devices, as `tf.config` shows and splits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from jaxtribute import config
from jaxtribute._src.addons.compat.tf.accelerators import accelerator_kind
from jaxtribute._src.core.devices import DeviceSpec, available_devices
from jaxtribute.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class PhysicalDevice:
    """A device of the machine. All CPUs are one. Source: `tf.config.PhysicalDevice`."""

    name: str
    device_type: str


class LogicalDevice(str):
    """A device that programs see. It is its name, so that it may be given wherever a device is asked for.

    Source: `tf.config.LogicalDevice`.
    """

    name: str
    device_type: str

    def __new__(cls, name: str, device_type: str) -> LogicalDevice:
        """A device of that name."""
        made = super().__new__(cls, name)
        made.name, made.device_type = name, device_type
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.name, self.device_type

    def __repr__(self) -> str:
        return f"LogicalDevice(name={self.name!r}, device_type={self.device_type!r})"

    def __str__(self) -> str:
        return repr(self)


@dataclass(frozen=True, slots=True)
class LogicalDeviceConfiguration:
    """Part of a physical device that is a logical one. The limits mean nothing for a CPU.

    Source: `tf.config.LogicalDeviceConfiguration`.
    """

    memory_limit: int | None = None
    experimental_priority: int | None = None


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """Returns the devices of the machine. JAX starts only if an accelerator may be among them.

    Source: `tf.config.list_physical_devices`.
    """
    devices = [PhysicalDevice("/physical_device:CPU:0", "CPU")] if device_type in (None, "CPU") else []
    kind = "" if device_type == "CPU" else accelerator_kind()
    if kind and device_type in (None, kind):
        devices += [PhysicalDevice(f"/physical_device:{kind}:{i}", kind) for i in range(jax.local_device_count())]
    return devices


def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """Returns the devices that JAX may use, which are those of `list_physical_devices`.

    Source: `tf.config.get_visible_devices`.
    """
    return list_physical_devices(device_type)


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """Returns the devices that programs see; starts JAX. Source: `tf.config.list_logical_devices`."""
    devices = [LogicalDevice(name, DeviceSpec.parse(name).device_type or "CPU") for name in available_devices()]
    return [device for device in devices if device_type in (None, device.device_type)]


def set_logical_device_configuration(
    device: PhysicalDevice, logical_devices: Sequence[LogicalDeviceConfiguration]
) -> None:
    """Splits the CPU into logical devices; as `jd.config.set_logical_cpu_devices`, before JAX starts.

    Raises:
      ArgumentError: a device other than the CPU, which JAX does not split.
      ConfigError: JAX has already started.

    Source: `tf.config.set_logical_device_configuration`.
    """
    if device.device_type != "CPU":
        raise ArgumentError(f"{device} cannot be split. HINT: JAX splits only the CPU into logical devices.")
    config.set_logical_cpu_devices(len(logical_devices))


def experimental_connect_to_cluster(cluster_spec_or_resolver: object, *args: object, **kwargs: object) -> None:
    """Does nothing: the strategies join their cluster by themselves. TensorFlow's further arguments are accepted.

    Source: `tf.config.experimental_connect_to_cluster`.
    """
