"""`tf.tpu.experimental`: JAX initializes TPUs by itself."""

from __future__ import annotations

from typing import Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.tpu.device_assignment import DeviceAssignment as DeviceAssignment
from jaxtribute._src.addons.tpu.device_assignment import Topology as Topology
from jaxtribute._src.addons.tpu.device_assignment import is_tpu
from jaxtribute._src.core.devices import default_devices


def initialize_tpu_system(cluster_resolver: object = None) -> Topology | None:
    """Returns the topology of the TPUs, None if there is none: JAX initializes TPUs when it starts.

    Source: `tf.tpu.experimental.initialize_tpu_system`.
    """
    found = [device for device in default_devices() if is_tpu(device)]
    return Topology(found) if found else None


def shutdown_tpu_system(cluster_resolver: object = None) -> None:
    """Does nothing: the end of the process does it. Source: `tf.tpu.experimental.shutdown_tpu_system`."""


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.tpu.experimental", name)
