"""Conversion to arrays by TensorFlow's rules: of Python's numbers and strings, nests of them, variables and arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import IndexedSlices
from jaxtribute._src.addons.compat.tf.texts import Texts
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from jaxtribute.extending import ArrayOperators, Tracer, operand
from jaxtribute.typing import DType

TensorLike: TypeAlias = Any
"""Anything that becomes a tensor: an array, a variable, a number, a string, and nests of lists of them."""
ShapeLike: TypeAlias = Any
"""A shape, or lengths in the form of one: a tuple, a list, a `TensorShape` or an array of integers."""
Axis: TypeAlias = Any
"""One axis, several in a tuple or list, or None."""
# What NumPy makes of Python's numbers, and what TensorFlow makes of them.
_DEFAULTS = {np.dtype("float64"): np.dtype("float32"), np.dtype("int64"): np.dtype("int32")}


def host_array(value: TensorLike, dtype: DType = None) -> np.ndarray[Any, Any]:
    """`value` as a NumPy array. Arrays keep their type; Python numbers take TensorFlow's, strings become bytes."""
    if isinstance(value, bytes):
        # An array of NumPy's own bytes would lose zeros at the end.
        array: np.ndarray[Any, Any] = np.array(bytes(value), dtype=object)
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
    else:
        array = np.asarray(operand(value))
        # A nest that holds arrays keeps their type; one of Python numbers has none of its own.
        # NumPy alone cannot tell: `[np.float64(1)]` and `[1.0]` become the same array.
        array = array if _holds_arrays(value) else array.astype(_DEFAULTS.get(array.dtype, array.dtype), copy=False)
    if array.dtype.kind == "U":
        # As objects: NumPy's own type of bytes has one length for all, and drops zeros at their ends.
        texts: Any = array
        array = np.char.encode(texts, "utf-8").astype(object)
    elif array.dtype.kind == "S":
        array = np.array(value, dtype=object) if isinstance(value, (list, tuple)) else array.astype(object)
    return array if dtype is None else array.astype(dtype, copy=False)


def as_tensor(value: TensorLike, dtype: DType = None) -> Any:
    """`value` as an array on a device, or as a NumPy array of bytes if it holds strings.

    Args:
      value: an array, variable, number, string, or a nest of lists of them.
      dtype: the element type; 64-bit types become 32-bit ones without JAX's `jax_enable_x64`.
    """
    value = operand(value)
    if isinstance(value, IndexedSlices):
        value = jnp.zeros(_rows_shape(value), value.values.dtype).at[value.indices].add(value.values)
    opened = getattr(value, "__jax_array__", None)
    if opened is not None:  # a variable of Keras, whose value may be traced
        value = opened()
    if dtype is not None and np.dtype(dtype).kind != "O":
        # JAX warns if it is asked for a type of 64 bits that it does not have.
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    if isinstance(value, jax.Array):
        return value if dtype is None or value.dtype == dtype else value.astype(dtype)
    # NumPy would ask a tracer for its value.
    if isinstance(value, (list, tuple)) and any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
        return jnp.stack([as_tensor(part, dtype) for part in value])
    array = host_array(value, dtype)
    return (
        array.view(Texts) if array.dtype.kind == "O" else jnp.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
    )


def _rows_shape(slices: IndexedSlices) -> tuple[int, ...]:
    """The shape of the whole array that slices are rows of.

    Raises:
      ArgumentError: they do not say it.
    """
    if slices.dense_shape is None:
        raise ArgumentError(f"{slices} do not say how many rows there are. HINT: give IndexedSlices a dense_shape.")
    return as_shape(slices.dense_shape)


def as_typed_tensor(value: TensorLike, dtype: DType) -> Any:
    """`as_tensor`, which refuses to change the type of what has one, and to cut off fractions, as TensorFlow does.

    Raises:
      ArgumentTypeError: a tensor or variable has another type, or Python's numbers are of a kind that `dtype` is not.
    """
    if dtype is None or np.dtype(dtype).kind == "O":
        return as_tensor(value, dtype)
    wanted, given = jax.dtypes.canonicalize_dtype(dtype), operand(value)
    own = getattr(given, "dtype", None)
    if isinstance(given, (jax.Array, ArrayOperators)) or hasattr(given, "__jax_array__"):
        is_other = own is not None and jax.dtypes.canonicalize_dtype(own) != wanted
    else:
        # NumPy's arrays are cast.
        is_other = own is None and not _holds_arrays(given) and not _is_of_kind(np.asarray(given), wanted)
    if is_other:
        told = f"a tensor of {own}" if own is not None else repr(given)
        raise ArgumentTypeError(f"{told} was to become one of {wanted}. HINT: tf.cast(value, dtype) changes the type.")
    return as_tensor(value, dtype)


def _is_of_kind(numbers: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    """True if no number loses a part of it in a type: an int may become a float, and none of them a bool."""
    kinds = {"b": "b", "i": "iufcV", "u": "iufcV", "f": "fcV", "c": "c"}
    return not numbers.size or dtype.kind in kinds.get(numbers.dtype.kind, dtype.kind)


def number_or_tensor(value: TensorLike) -> Any:
    """`value` as an array, unless it is a Python number, which takes the other operand's type."""
    return value if isinstance(value, (bool, int, float, complex)) else as_tensor(value)


def _holds_arrays(value: TensorLike) -> bool:
    return any(isinstance(leaf, (np.ndarray, np.generic, jax.Array)) for leaf in jax.tree.leaves(value))


def as_shape(shape: ShapeLike) -> tuple[Any, ...]:
    """Lengths as JAX takes them: integers, and symbols while a Keras model is made."""
    lengths = shape if isinstance(shape, (tuple, list)) else np.atleast_1d(shape)
    return tuple(one if jax.export.is_symbolic_dim(one) else int(one) for one in lengths)
