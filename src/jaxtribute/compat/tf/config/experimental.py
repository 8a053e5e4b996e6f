"""`tf.config.experimental`: older names of `tf.config`, and the memory of GPUs, which the environment sets here."""

from __future__ import annotations

from typing import Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute.compat.tf.config._devices import LogicalDeviceConfiguration as VirtualDeviceConfiguration
from jaxtribute.compat.tf.config._devices import PhysicalDevice, set_logical_device_configuration
from jaxtribute.compat.tf.config._devices import get_visible_devices as get_visible_devices
from jaxtribute.compat.tf.config._devices import list_logical_devices as list_logical_devices
from jaxtribute.compat.tf.config._devices import list_physical_devices as list_physical_devices

__all__ = [
    "VirtualDeviceConfiguration",
    "get_visible_devices",
    "list_logical_devices",
    "list_physical_devices",
    "set_memory_growth",
    "set_virtual_device_configuration",
]

set_virtual_device_configuration = set_logical_device_configuration


def set_memory_growth(device: PhysicalDevice, enable: bool) -> None:
    """Does nothing: JAX reads XLA_PYTHON_CLIENT_PREALLOCATE, false for growth, from the environment when it starts.

    Source: `tf.config.experimental.set_memory_growth`.
    """


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.config.experimental", name)
