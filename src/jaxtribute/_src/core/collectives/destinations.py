"""Places for the result of a reduction or a broadcast: the `destinations` of `tf.distribute`."""

from __future__ import annotations

from typing import Any

import jax

from jaxtribute._src.core.devices import resolve_device
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.types import Device, Leaf, Numeric
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute._src.core.values.placing import put as put_on
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentTypeError

Destination = ReplicaMesh | Device


def parse_destinations(destinations: Leaf, mesh: ReplicaMesh) -> Destination:
    """The devices that a result should be on: those of a mesh, or a single one.

    Args:
      destinations: a variable, distributed value or array, whose devices are meant; a device's name; or a JAX device.
      mesh: the replicas' devices, for values that several of them share.

    Raises:
      ArgumentTypeError: anything else, such as a list of devices.
      DeviceError: a name that no device has.
    """
    if isinstance(destinations, Variable):
        policy = destinations.policy
        if policy.parameter_device is not None:
            return policy.parameter_device
        if policy.mesh is not None:
            return policy.mesh
        # Made outside every strategy, which leaves only the array itself to tell where the variable lies.
        destinations = destinations.stored
    if isinstance(destinations, (PerReplica, Mirrored)):
        return destinations.mesh
    if isinstance(destinations, (str, Device)):
        return resolve_device(destinations)
    # What is traced lies nowhere yet. The program that it belongs to runs on all replicas.
    if isinstance(destinations, Tracer):
        return mesh
    if isinstance(destinations, jax.Array):
        devices = destinations.devices()
        return next(iter(devices)) if len(devices) == 1 else mesh
    raise ArgumentTypeError(
        f"destinations is {destinations!r}, a {type(destinations).__name__}. HINT: pass one device's name, or the "
        "variable, distributed value or array whose devices are meant."
    )


def put(value: Numeric, destination: Destination) -> Any:
    """`value`, an array, on the destination: `Mirrored` on a mesh of several devices, else an array.

    While a program is traced it stays where the program needs it.
    """
    if isinstance(value, Mirrored):
        value = value.data
    if isinstance(destination, ReplicaMesh):
        # Within a trace the compiler places it; a `Mirrored` value says no more than that all replicas have it.
        if not isinstance(value, Tracer):
            value = put_on(value, destination.replicated)
        return value if destination.size == 1 else Mirrored(value, destination)
    if isinstance(value, Tracer):
        return value
    # One of its equal copies is enough, and it may be on the destination already.
    if isinstance(value, jax.Array) and value.is_fully_replicated:
        value = value.addressable_data(0)
    return jax.device_put(value, destination)
