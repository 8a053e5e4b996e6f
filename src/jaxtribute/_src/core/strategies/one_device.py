"""`OneDeviceStrategy`: everything on one device."""

from __future__ import annotations

from jaxtribute._src.core.backend import prepare_cpu_backend
from jaxtribute._src.core.devices import strategy_devices
from jaxtribute._src.core.strategies.base import Strategy
from jaxtribute._src.core.strategies.extended import StrategyExtended
from jaxtribute._src.core.types import Device
from jaxtribute._src.core.values.mesh import ReplicaMesh


class OneDeviceStrategy(Strategy):
    """Puts variables, input and computation on one device.

    For trying out code before it runs on many: the program is the same, and costs what plain JAX costs.

    Args:
      device: TensorFlow's name of the device, such as `"/cpu:0"`, `"GPU:0"` or `"/device:GPU:1"`, or a JAX
        device.

    Raises:
      DeviceError: no such device, or no such name.

    Examples:
      >>> strategy = jd.OneDeviceStrategy("CPU:0")
      >>> strategy.run(lambda: jnp.ones(2))
      Array([1., 1.], dtype=float32)

    Source: `tf.distribute.OneDeviceStrategy`.
    """

    def __init__(self, device: str | Device) -> None:
        prepare_cpu_backend()
        # Where devices are described in place of those named there may be many: the first stands for all.
        super().__init__(StrategyExtended(ReplicaMesh(strategy_devices([device])[:1])))
