"""`tf.config`: the devices."""

from typing import Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.compat.tf.functions import functions_run_eagerly as functions_run_eagerly
from jaxtribute._src.addons.compat.tf.functions import run_functions_eagerly as run_functions_eagerly
from jaxtribute.compat.tf.config import experimental as experimental
from jaxtribute.compat.tf.config._devices import LogicalDevice as LogicalDevice
from jaxtribute.compat.tf.config._devices import LogicalDeviceConfiguration as LogicalDeviceConfiguration
from jaxtribute.compat.tf.config._devices import PhysicalDevice as PhysicalDevice
from jaxtribute.compat.tf.config._devices import experimental_connect_to_cluster as experimental_connect_to_cluster
from jaxtribute.compat.tf.config._devices import get_visible_devices as get_visible_devices
from jaxtribute.compat.tf.config._devices import list_logical_devices as list_logical_devices
from jaxtribute.compat.tf.config._devices import list_physical_devices as list_physical_devices
from jaxtribute.compat.tf.config._devices import (
    set_logical_device_configuration as set_logical_device_configuration,
)


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.config", name)
