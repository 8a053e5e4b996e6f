"""Numbers and arrays put on devices, in memory of their own where a program is to take it over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from jaxtribute._src.core.jaxprs.core import Tracer, batched_device_put, explicit_device_put_scope, numbers_of
from jaxtribute._src.core.types import Device, Numeric
from jaxtribute._src.core.values.described import DescribedArray, nowhere

_SMALL_BYTES = 1 << 20
_ALIGNED = 64
"""The multiple of bytes at which an array on the host must begin for JAX to use its memory as it is."""
_KINDS = "biuf"
"""The kinds of NumPy dtypes that go this way: numbers. What NumPy does not know, such as bfloat16, does not."""
_WIDE_BYTES = 8
_PLANS = 256
"""Number of shapes whose plans are kept."""


def own(value: Numeric, where: Sharding | Device | None = None) -> jax.Array:
    """A copy of an array or number in device memory of its own, so that it can be donated.

    Neither `jax.device_put` alone does it (it keeps what is in place already, and may use a host array's memory,
    also with `may_alias=False`) nor a copy on the host, whose memory XLA cannot take over either.

    Args:
      value: the array; one on the host may change as soon as this returns.
      where: where the copy lies; by default on the device where the array is, or JAX's default.
    """
    if where is not None and nowhere(where):
        return put(value, where)
    host = _small_host(value, where)
    if host is not None:
        return jax.device_put(host) if where is None else put(host, where)
    array = (jnp.asarray(value) if where is None else put(value, where)).copy()
    return array if isinstance(value, jax.Array) else jax.block_until_ready(array)


def _small_host(value: Numeric, where: Sharding | Device | None) -> np.ndarray[Any, Any] | None:
    """A copy of `value` at an address whose memory JAX cannot use; None for what is large or has to be cut.

    What JAX copies by itself needs no program: many small variables of many shapes would compile one for each.
    """
    if isinstance(where, Sharding) and not where.is_fully_replicated:
        return None
    if isinstance(value, Tracer) or not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return None
    if not (jnp.issubdtype(value.dtype, np.number) or value.dtype == bool) or value.nbytes > _SMALL_BYTES:
        return None
    if isinstance(value, jax.Array):
        platform = next(iter(value.devices())).platform
        on_host = value.is_fully_addressable and value.is_fully_replicated and platform == "cpu"
        # NumPy has no weak types: a copy made there would be strongly typed.
        if where is None or not on_host or value.weak_type:
            return None
        # Its copies are equal, and any of them is in the host's memory.
        value = value.addressable_data(0)
    array = _canonical(np.asarray(value))
    memory = np.empty(array.nbytes + 2 * _ALIGNED, np.uint8)
    # Off the alignment on purpose: JAX would use aligned memory as it is, and an array in it cannot be donated.
    start = -memory.ctypes.data % _ALIGNED + _ALIGNED // 8
    host = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    host[...] = array
    return host


def _canonical(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`array` with the dtype that JAX gives it."""
    return np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))


def put(value: Numeric, where: Sharding | Device) -> jax.Array:
    """`value` on the devices of `where`, of which other processes may have some; it may share memory with `value`.

    Every process gives the same value, and puts its own part. `jax.device_put` would compare them over all
    processes, which costs a collective, and cannot be done in a thread beside others.
    """
    if nowhere(where):
        sharding = SingleDeviceSharding(where) if isinstance(where, Device) else where
        return DescribedArray.of(value, jax.dtypes.canonicalize_dtype(jnp.result_type(value)), sharding)
    if isinstance(where, Device) or where.is_fully_addressable:
        # Most calls are of small arrays, with placements that there have been before.
        return _transfer(where)(value) if type(value) is np.ndarray else jax.device_put(value, where)
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return jax.device_put(value, where)
    if numbers_of(value) is not value:
        return jax.random.wrap_key_data(put(numbers_of(value), where), impl=jax.random.key_impl(value))
    host = _canonical(value) if isinstance(value, np.ndarray) else np.asarray(jnp.asarray(value))
    return jax.make_array_from_callback(host.shape, where, lambda index: host[index])


def put_differentiated(value: Any, where: Sharding) -> Any:
    """`value`, which JAX differentiates or transforms, on the devices of `where`."""
    return jax.device_put(value, where) if where.is_fully_addressable else _spread(value, where)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _spread(value: Any, where: Sharding) -> Any:
    """`value` on devices of several processes: JAX would send its cotangent back between them, which CPUs cannot."""
    return jax.device_put(value, where) if isinstance(value, Tracer) else put(value, where)


def _spread_forward(value: Any, where: Sharding) -> tuple[Any, Any]:
    local = isinstance(value, Tracer) or value.is_fully_addressable
    return _spread(value, where), None if local else value


def _spread_backward(_: Sharding, spread: Any, cotangent: Any) -> tuple[Any]:
    """The cotangent where the value lay: each process has its own copy."""
    stays = spread is not None or isinstance(cotangent, Tracer)
    return (cotangent if stays else cotangent.addressable_data(0),)


_spread.defvjp(_spread_forward, _spread_backward)


@lru_cache(maxsize=256)
def _transfer(where: Sharding | Device) -> Transfer:
    return Transfer(SingleDeviceSharding(where) if isinstance(where, Device) else where)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Answers that hold for all arrays of one shape and dtype."""

    aval: Any
    """JAX's description of the array on devices."""
    devices: list[Device]
    pieces: Sequence[Any]
    """The index of each device's piece; none if there is one device, which gets the whole."""


class Transfer:
    """Puts NumPy arrays in one placement. They may share memory with what becomes of them, as in `jax.device_put`.

    `jax.device_put` asks about every array again, which takes ten times as long as it takes to hand over a small batch.
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
