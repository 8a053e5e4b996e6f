"""A variable with one copy on the parameter device, while replicas run on others (central storage)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.jaxprs.making import equal
from jaxtribute._src.core.types import Device, Numeric
from jaxtribute._src.core.values.distributed import ReplicaValues
from jaxtribute._src.core.values.placing import own
from jaxtribute._src.core.values.policies.base import Policy

if TYPE_CHECKING:
    from jaxtribute._src.core.values.mesh import ReplicaMesh
    from jaxtribute._src.core.values.variable import Variable


class CentralPolicy(Policy):
    """One array on the parameter device. Replicas get copies; what they write is aggregated, then applied once.

    Args:
      mesh: the devices of the replicas.
      parameter_device: the device that holds the value and computes its updates.
    """

    def __init__(self, mesh: ReplicaMesh, parameter_device: Device) -> None:
        self._mesh = mesh
        self.parameter_device: Device | None = parameter_device

    @property
    def mesh(self) -> ReplicaMesh:
        return self._mesh

    def place(self, value: Numeric) -> jax.Array:
        return own(value, self.parameter_device)

    def spread(self, array: jax.Array) -> jax.Array:
        return jax.device_put(array, self.mesh.replicated)

    def admit(self, value: Numeric) -> Any:
        """The first component of a value of replicas, on the parameter device."""
        value = value.values[0] if isinstance(value, ReplicaValues) else value
        if isinstance(value, Tracer) and self.mesh.size == 1:
            return equal(value)  # here the one replica's program ends and the update begins
        return on_device(value, self.parameter_device)

    def read_by_python(self, array: Numeric, variable: Variable) -> Any:
        """The value, bound to no device, so that it can meet arrays of the replicas' devices."""
        if isinstance(array, Tracer):
            return array
        # By way of the host: so it is committed to no device, and JAX may move it to the others.
        with jax.default_device(self.parameter_device):
            return jnp.asarray(np.asarray(array))


def on_device(value: Numeric, device: Device | None) -> Any:
    """`value` on `device` if it is an array of other devices, else as it is."""
    if not isinstance(value, jax.Array) or isinstance(value, Tracer):
        return value
    # One of its equal copies, which may be on the device already: nothing is sent then.
    if len(value.devices()) > 1 and value.is_fully_replicated:
        value = value.addressable_data(0)
    return value if value.devices() == {device} else jax.device_put(value, device)
