"""Arrays of the host, put on devices by the call of C that `jax.device_put` comes to, without the Python before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from jaxtribute._src.jaxprs.core import batched_device_put, explicit_device_put_scope

_KINDS = "biuf"
"""The kinds of NumPy dtypes that go this way: numbers. What NumPy does not know, such as bfloat16, does not."""
_WIDE_BYTES = 8
_PLANS = 256
"""Number of shapes whose plans are kept."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Answers that hold for all arrays of one shape and dtype."""

    aval: Any
    """JAX's description of the array on devices."""
    devices: list[jax.Device]
    pieces: Sequence[Any]
    """The index of each device's piece; none if there is one device, which gets the whole."""


class Transfer:
    """Puts NumPy arrays in one placement. They may share memory with what becomes of them, as in `jax.device_put`.

    `jax.device_put` asks about every array anew, which takes ten times as long as it takes to hand over a small batch.
    Here the answers are kept for each shape and dtype.

    Args:
      where: the placement, on devices of this process.
    """

    def __init__(self, where: Sharding) -> None:
        self.sharding = where
        """The placement."""
        self._plans: dict[Any, _Plan] = {}

    def __call__(self, array: np.ndarray[Any, Any]) -> jax.Array:
        """The array on the devices."""
        dtype = array.dtype
        if dtype.kind not in _KINDS or not dtype.isnative or not array.size:
            return jax.device_put(array, self.sharding)
        # Asked each time: whether JAX keeps 64 bits is a setting that may change.
        if dtype.itemsize >= _WIDE_BYTES:
            dtype = jax.dtypes.canonicalize_dtype(dtype)
            if dtype != array.dtype:
                array = array.astype(dtype)
        plan = self._plans.get((array.shape, dtype))
        if plan is None:
            return self._planned(array)
        # With the ellipsis NumPy gives an array, of no axes as well.
        pieces = [array[(*index, ...)] for index in plan.pieces] or [array]
        # As JAX itself says that a transfer is meant, and not one that a transfer guard is to find.
        with explicit_device_put_scope():
            return batched_device_put(plan.aval, self.sharding, pieces, plan.devices)

    def _planned(self, array: np.ndarray[Any, Any]) -> jax.Array:
        """The array on the devices as JAX puts it there, whose answers are kept."""
        whole = jax.device_put(array, self.sharding)
        indices = self.sharding.addressable_devices_indices_map(array.shape)
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        devices = list(indices)
        pieces = list(indices.values()) if len(devices) > 1 else ()
        self._plans[array.shape, array.dtype] = _Plan(whole.aval, devices, pieces)
        return whole
