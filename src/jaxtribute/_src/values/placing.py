"""Numbers and arrays put on devices, in memory of their own where a program is to take it over."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from jaxtribute._src.jaxprs.core import ArrayImpl, Tracer
from jaxtribute._src.jaxprs.transfers import Transfer
from jaxtribute._src.types import Numeric
from jaxtribute._src.values.described import DescribedArray, is_described

_SMALL_BYTES = 1 << 20
_ALIGNED = 64
"""The multiple of bytes at which an array on the host must begin for JAX to use its memory as it is."""


def own(value: Numeric, where: Sharding | jax.Device | None = None) -> jax.Array:
    """A copy of an array or number in device memory of its own, so that it can be donated.

    Neither `jax.device_put` alone does it (it keeps what is in place already, and may use a host array's memory,
    also with `may_alias=False`) nor a copy on the host, whose memory XLA cannot take over either.

    Args:
      value: the array; one on the host may change as soon as this returns.
      where: where the copy lies; by default on the device where the array is, or JAX's default.
    """
    if where is not None and _only_described(where):
        return put(value, where)
    host = _small_host(value, where)
    if host is not None:
        return jax.device_put(host) if where is None else put(host, where)
    array = (jnp.asarray(value) if where is None else put(value, where)).copy()
    return array if isinstance(value, jax.Array) else jax.block_until_ready(array)


def _small_host(value: Numeric, where: Sharding | jax.Device | None) -> np.ndarray[Any, Any] | None:
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


def put(value: Numeric, where: Sharding | jax.Device) -> jax.Array:
    """`value` on the devices of `where`, of which other processes may have some; it may share memory with `value`.

    Every process gives the same value, and puts its own part. `jax.device_put` would compare them over all
    processes, which costs a collective, and cannot be done in a thread beside others.
    """
    if _only_described(where):
        sharding = SingleDeviceSharding(where) if isinstance(where, jax.Device) else where
        return DescribedArray(np.shape(value), jax.dtypes.canonicalize_dtype(jnp.result_type(value)), sharding)
    if isinstance(where, jax.Device) or where.is_fully_addressable:
        # Most calls are of small arrays, with placements that there have been before.
        return _transfer(where)(value) if type(value) is np.ndarray else jax.device_put(value, where)
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return jax.device_put(value, where)
    host = _canonical(value) if isinstance(value, np.ndarray) else np.asarray(jnp.asarray(value))
    return jax.make_array_from_callback(host.shape, where, lambda index: host[index])


@lru_cache(maxsize=256)
def _transfer(where: Sharding | jax.Device) -> Transfer:
    return Transfer(SingleDeviceSharding(where) if isinstance(where, jax.Device) else where)


def _only_described(where: Sharding | jax.Device) -> bool:
    return is_described(where if isinstance(where, jax.Device) else next(iter(where.device_set)))


def unbound(array: Numeric) -> Any:
    """The array where it is, but so that JAX may move it to meet another; only one on one device can be."""
    if isinstance(array, Tracer) or not isinstance(array, jax.Array) or not array.committed:
        return array
    if not isinstance(array.dtype, np.dtype):
        return jax.random.wrap_key_data(unbound(jax.random.key_data(array)), impl=jax.random.key_impl(array))
    if len(array.sharding.device_set) > 1:
        return array
    # What is looked at already: the checks take half of the time.
    return ArrayImpl(array.aval, array.sharding, [array], committed=False, _skip_checks=True)
