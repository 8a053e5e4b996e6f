"""Values to arrays, by TensorFlow's rules for Python numbers: `float32`, `int32`, `bool` and strings."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.jaxprs.core import Tracer
from jaxtribute._src.values.operators import operand

_DEFAULTS = {np.dtype("float64"): np.dtype("float32"), np.dtype("int64"): np.dtype("int32")}


def host_array(value: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """`value` as a NumPy array. Arrays keep their type; Python numbers take TensorFlow's, strings become bytes."""
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
    else:
        array: np.ndarray[Any, Any] = np.asarray(operand(value))
        # A nest that holds arrays keeps their type; one of Python numbers has none of its own.
        array = array if _holds_arrays(value) else array.astype(_DEFAULTS.get(array.dtype, array.dtype), copy=False)
    if array.dtype.kind == "U":
        array = np.char.encode(cast("Any", array), "utf-8").astype(object)
    elif array.dtype.kind == "S":
        array = array.astype(object)
    return array if dtype is None else array.astype(dtype, copy=False)


def as_tensor(value: Any, dtype: Any = None) -> Any:
    """`value` as an array on a device, or as a NumPy array of bytes if it holds strings.

    Args:
      value: an array, variable, number, string, or a nest of lists of them.
      dtype: the element type; 64-bit types become 32-bit ones without JAX's `jax_enable_x64`.
    """
    value = operand(value)
    if dtype is not None and np.dtype(dtype).kind != "O":
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    if isinstance(value, jax.Array):
        return value if dtype is None or value.dtype == dtype else value.astype(dtype)
    if isinstance(value, (list, tuple)) and any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
        return jnp.stack([as_tensor(part, dtype) for part in value])
    array = host_array(value, dtype)
    return array if array.dtype.kind == "O" else jnp.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))


def number_or_tensor(value: Any) -> Any:
    """`value` as an array, unless it is a Python number, which takes the other operand's type."""
    return value if isinstance(value, (bool, int, float, complex)) else as_tensor(value)


def _holds_arrays(value: Any) -> bool:
    return any(isinstance(leaf, (np.ndarray, np.generic, jax.Array)) for leaf in jax.tree.leaves(value))
