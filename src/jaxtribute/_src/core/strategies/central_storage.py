"""`CentralStorageStrategy`: variables on one device, computation on all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.devices import device_name, resolve_device
from jaxtribute._src.core.execution import compiled
from jaxtribute._src.core.execution.function import Function
from jaxtribute._src.core.execution.nests import map_leaves
from jaxtribute._src.core.jaxprs.core import is_traced
from jaxtribute._src.core.strategies.base import Strategy
from jaxtribute._src.core.strategies.extended import StrategyExtended
from jaxtribute._src.core.strategies.mirrored import chosen_devices
from jaxtribute._src.core.types import Device, Numeric
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica
from jaxtribute._src.core.values.enums import VariableSynchronization
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute._src.core.values.policies.base import Policy
from jaxtribute._src.core.values.policies.central import CentralPolicy
from jaxtribute._src.core.values.policies.plain import PlainPolicy
from jaxtribute.errors import ArgumentError


class CentralStorageExtended(StrategyExtended):
    """Replicas on `mesh`, variables on one device, which may be one of them.

    Args:
      mesh: the device of each replica.
      parameter_device: the device of all variables.
    """

    def __init__(self, mesh: ReplicaMesh, parameter_device: Device) -> None:
        super().__init__(mesh)
        self._parameter_device = parameter_device

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return (device_name(self._parameter_device),)

    def variable_policy(self, synchronization: VariableSynchronization) -> tuple[Policy, VariableSynchronization]:
        """One copy on the parameter device, whatever the synchronization."""
        if self.mesh.devices == (self._parameter_device,):
            return PlainPolicy(self.mesh), synchronization
        return CentralPolicy(self.mesh, self._parameter_device), synchronization

    def _call_alone(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # One replica, on the device that stores, too: nothing travels, and the step is plain JAX.
        if self.mesh.devices == (self._parameter_device,):
            return super()._call_alone(fn, args, kwargs)
        executor = contexts.current().executor
        if isinstance(fn, Function) and not executor.traced:
            return fn.run_on(self.strategy)(*args, **kwargs)
        if not executor.traced:
            result = self.run_eagerly(fn, args, kwargs)
            return map_leaves(_alone, result) if is_traced() else result
        return map_leaves(_alone, compiled.run(self.strategy, self.mesh, fn, args, kwargs, executor))


class CentralStorageStrategy(Strategy):
    """Keeps every variable on one device of the machine and runs one replica on each compute device, in step.

    A step copies the values of the variables that it reads up to the compute devices and brings reduced
    gradients (whatever the replicas write, aggregated) down; updates are computed once, on the parameter device,
    which optimizer slots never leave. For models whose optimizer state does not fit beside them on an
    accelerator.

    Args:
      compute_devices: TensorFlow's names of the devices, or JAX devices, one replica each; or a number: the first so
        many of the default ones. By default all accelerators, or all (logical) CPU devices if there is none.
      parameter_device: the device of the variables. By default the only accelerator if there is just one, else
        the CPU.

    Raises:
      DeviceError: a device that does not exist, or one that is named twice.
      ArgumentTypeError: a single string instead of a list of compute devices.

    Examples:
      >>> strategy = jd.CentralStorageStrategy(["CPU:0", "CPU:1"], parameter_device="CPU:0")
      >>> strategy.extended.parameter_devices
      ('/job:localhost/replica:0/task:0/device:CPU:0',)

    Source: `tf.distribute.experimental.CentralStorageStrategy`.
    """

    def __init__(
        self,
        compute_devices: Sequence[str | Device] | int | None = None,
        parameter_device: str | Device | None = None,
    ) -> None:
        chosen = chosen_devices("compute_devices", compute_devices)
        mesh = ReplicaMesh(chosen)
        if mesh.described:
            raise ArgumentError(
                f"CentralStorageStrategy over {mesh.size} described device(s): its step is several programs, some "
                "on the CPU, which cannot be compiled without running. HINT: compile under MirroredStrategy."
            )
        super().__init__(CentralStorageExtended(mesh, _parameter_device(chosen, parameter_device)))


def _parameter_device(compute: Sequence[Device], chosen: str | Device | None) -> Device:
    if chosen is not None:
        return resolve_device(chosen)
    return compute[0] if len(compute) == 1 and compute[0].platform != "cpu" else resolve_device("CPU:0")


def _alone(value: Numeric) -> Any:
    """The one component of a distributed value."""
    if isinstance(value, PerReplica) and not value.is_ragged:
        return value.data.reshape(()) if value.scalar else value.data
    return value.data if isinstance(value, Mirrored) else value
