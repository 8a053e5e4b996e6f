"""Conversion to arrays by TensorFlow's rules: of Python's numbers and strings, nests of them, variables and arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import IndexedSlices
from jaxtribute._src.addons.compat.tf.texts import Texts
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from jaxtribute.extending import ArrayOperators, Tracer, operand, settings
from jaxtribute.typing import DType

TensorLike: TypeAlias = Any
"""Anything that becomes a tensor: an array, a variable, a number, a string, and nests of lists of them."""
ShapeLike: TypeAlias = Any
"""A shape, or lengths in the form of one: a tuple, a list, a `TensorShape` or an array of integers."""
Axis: TypeAlias = Any
"""One axis, several in a tuple or list, or None."""
# What NumPy makes of Python's numbers, and what TensorFlow makes of them.
_DEFAULTS = {np.dtype("float64"): np.dtype("float32"), np.dtype("int64"): np.dtype("int32")}
_NUMBERS = (bool, int, float, complex)
_LONG = (np.dtype("int64"), np.dtype("uint64"))


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
        array = array if _holds_arrays(value) else _as_tensorflows(array)
    if array.dtype.kind == "U":
        # As objects: NumPy's own type of bytes has one length for all, and drops zeros at their ends.
        texts: Any = array
        array = np.char.encode(texts, "utf-8").astype(object)
    elif array.dtype.kind == "S":
        array = np.array(value, dtype=object) if isinstance(value, (list, tuple)) else array.astype(object)
    return array if dtype is None else array.astype(dtype, copy=False)


def _as_tensorflows(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array that NumPy made of Python's values, in the type that TensorFlow has for them.

    Raises:
      ArgumentError: an integer needs more than 64 bits.
    """
    if array.dtype == np.uint64 or (array.dtype.kind == "O" and any(isinstance(one, int) for one in array.ravel())):
        raise ArgumentError(f"{array.tolist()} has an integer of more than 63 bits. HINT: use smaller numbers.")
    if array.dtype == np.int64 and array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
        return array  # an int64, as in TensorFlow
    return array.astype(_DEFAULTS.get(array.dtype, array.dtype), copy=False)


def as_tensor(value: TensorLike, dtype: DType = None) -> Any:
    """`value` as an array on a device, or as a NumPy array of bytes if it holds strings.

    Args:
      value: an array, variable, number, string, or a nest of lists of them.
      dtype: the element type; 64-bit types become 32-bit ones without JAX's `jax_enable_x64`.

    Raises:
      ArgumentError: integers do not fit into the 32 bits that JAX has then.
    """
    asked = None if dtype is None else np.dtype(dtype)
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
    array = host_array(value)
    if array.dtype.kind == "O" or (asked is not None and asked.kind == "O"):
        array = array if dtype is None else array.astype(dtype, copy=False)
        return array.view(Texts) if array.dtype.kind == "O" else array
    if asked is None or asked in _LONG:
        dtype = jax.dtypes.canonicalize_dtype(array.dtype if asked is None else asked)
        settings.check_range(array, np.dtype(dtype), "a tensor")
    return jnp.asarray(array.astype(dtype, copy=False))


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


def operands(x: TensorLike, y: TensorLike) -> tuple[Any, Any]:
    """Both operands: what is no tensor beside one takes its type, as in TensorFlow, as long as no number changes.

    A Python number stays one, to which JAX gives the other operand's type; of two, both get TensorFlow's types.

    Raises:
      ArgumentError: numbers of NumPy that the type of the tensor beside them does not hold.
    """
    loose = [_is_loose(one) for one in (x, y)]
    if loose[0] != loose[1]:
        tensor = as_tensor(y if loose[0] else x)
        other = _beside(x if loose[0] else y, tensor.dtype)
        return (other, tensor) if loose[0] else (tensor, other)
    numbers = [_is_number(one) for one in (x, y)]
    if all(numbers) or not any(numbers):
        return as_tensor(x), as_tensor(y)
    return (x, as_tensor(y)) if numbers[0] else (as_tensor(x), y)


def _is_loose(value: TensorLike) -> bool:
    """True for what is no tensor: numbers and arrays of Python's and NumPy's, and nests of them."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_loose, value))
    return isinstance(value, (*_NUMBERS, str, bytes, np.ndarray, np.generic))


def _is_number(value: TensorLike) -> bool:
    """True for a number of Python's; one of NumPy's may be an instance of `float`, and has a type of its own."""
    return isinstance(value, _NUMBERS) and not isinstance(value, np.generic)


def _beside(value: TensorLike, dtype: np.dtype[Any]) -> Any:
    """A Python number, or else an array of the type of the tensor beside it."""
    if _is_number(value):
        return value
    array, what = host_array(value), f"what stands beside a tensor of {dtype},"
    if jnp.issubdtype(dtype, jnp.integer) and _holds_arrays(value):
        if array.dtype.kind in "iu":
            settings.check_range(array, dtype, what)
            return as_tensor(array, dtype)
        if array.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                cut = array.astype(dtype)
            if not np.array_equal(cut, array):
                raise ArgumentError(
                    f"{what} has fractions: {array.ravel()[:5].tolist()}. TensorFlow would cut them off. "
                    "HINT: tf.cast one of both to the type of the other."
                )
            return as_tensor(cut)
    fits = array.dtype.kind != "O" and dtype.kind != "O" and _is_of_kind(array, dtype)
    return as_tensor(array, dtype) if fits else as_tensor(value)


def _holds_arrays(value: TensorLike) -> bool:
    return any(isinstance(leaf, (np.ndarray, np.generic, jax.Array)) for leaf in jax.tree.leaves(value))


def as_shape(shape: ShapeLike) -> tuple[Any, ...]:
    """Lengths as JAX takes them: integers, and symbols while a Keras model is made."""
    lengths = shape if isinstance(shape, (tuple, list)) else np.atleast_1d(shape)
    return tuple(one if jax.export.is_symbolic_dim(one) else int(one) for one in lengths)
