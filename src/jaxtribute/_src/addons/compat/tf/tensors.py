"""Arrays by TensorFlow's rules: making them, shaping them and picking from them."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.addons.compat.tf.conversion import (
    Axis,
    ShapeLike,
    TensorLike,
    as_shape,
    as_tensor,
    as_typed_tensor,
    host_array,
    operands,
)
from jaxtribute._src.addons.compat.tf.symbolic import allow_in_models
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError
from jaxtribute.extending import ArrayOperators
from jaxtribute.typing import DType

__all__ = [
    "Tensor",
    "boolean_mask",
    "broadcast_to",
    "cast",
    "concat",
    "constant",
    "convert_to_tensor",
    "ensure_shape",
    "expand_dims",
    "eye",
    "fill",
    "identity",
    "is_tensor",
    "linspace",
    "meshgrid",
    "newaxis",
    "ones",
    "ones_like",
    "pad",
    "range",
    "rank",
    "repeat",
    "reshape",
    "reverse",
    "roll",
    "shape",
    "size",
    "slice",
    "split",
    "squeeze",
    "stack",
    "stop_gradient",
    "tile",
    "transpose",
    "unstack",
    "where",
    "zeros",
    "zeros_like",
]

_IN_MODELS = (
    "broadcast_to",
    "cast",
    "concat",
    "convert_to_tensor",
    "expand_dims",
    "identity",
    "ones_like",
    "pad",
    "repeat",
    "reshape",
    "reverse",
    "roll",
    "slice",
    "split",
    "squeeze",
    "stack",
    "stop_gradient",
    "tile",
    "transpose",
    "unstack",
    "where",
    "zeros_like",
)
"""Functions that a Keras model may be made with. A symbolic tensor has no shape yet to make others of."""

Tensor = jax.Array
newaxis = None


def constant(value: TensorLike, dtype: DType = None, shape: ShapeLike = None, name: str | None = None) -> Any:
    """Returns an array of a number or a nest of numbers. Strings stay on the host, in a NumPy array of bytes.

    Args:
      value: the number or nest. Python floats give float32 and ints int32, as in TensorFlow.
      dtype: the element type.
      shape: the result's shape; a single number fills it.
      name: accepted for compatibility, here and in every function of this module.

    Raises:
      ArgumentTypeError: `value` is a tensor of another type, or has fractions that `dtype` has not.

    Source: `tf.constant`.
    """
    array = as_typed_tensor(value, dtype)
    if shape is None:
        return array
    # A single number fills the shape, as in TensorFlow.
    return jnp.full(shape, array) if array.size == 1 else array.reshape(shape)


def convert_to_tensor(value: TensorLike, dtype: DType = None, dtype_hint: DType = None, name: str | None = None) -> Any:
    """Returns `value` as an array; arrays are returned as they are, and `IndexedSlices` as all rows.

    Raises:
      ArgumentTypeError: `value` is a tensor of another type, or has fractions that `dtype` has not.

    Source: `tf.convert_to_tensor`.
    """
    if dtype is None and dtype_hint is not None:
        with contextlib.suppress(ArgumentTypeError):  # what does not fit the hint keeps its own type
            return as_typed_tensor(value, dtype_hint)
    return as_typed_tensor(value, dtype)


def is_tensor(x: TensorLike) -> bool:
    """Returns whether `x` is an array of JAX, or a variable. Source: `tf.is_tensor`."""
    return isinstance(x, (jax.Array, ArrayOperators))


def identity(input: TensorLike, name: str | None = None) -> Any:
    """Returns the array itself, as arrays cannot change. Source: `tf.identity`."""
    return as_tensor(input)


def stop_gradient(input: TensorLike, name: str | None = None) -> Any:
    """Returns the array, whose gradient is zero. Source: `tf.stop_gradient`."""
    return jax.lax.stop_gradient(as_tensor(input))


def zeros(shape: ShapeLike, dtype: DType = np.float32, name: str | None = None) -> jax.Array:
    """Returns zeros. Source: `tf.zeros`."""
    return jnp.zeros(as_shape(shape), jax.dtypes.canonicalize_dtype(dtype))


def ones(shape: ShapeLike, dtype: DType = np.float32, name: str | None = None) -> jax.Array:
    """Returns ones. Source: `tf.ones`."""
    return jnp.ones(as_shape(shape), jax.dtypes.canonicalize_dtype(dtype))


def zeros_like(input: TensorLike, dtype: DType = None, name: str | None = None) -> jax.Array:
    """Returns zeros of the shape and type of `input`. Source: `tf.zeros_like`."""
    return jnp.zeros_like(as_tensor(input), dtype)


def ones_like(input: TensorLike, dtype: DType = None, name: str | None = None) -> jax.Array:
    """Returns ones of the shape and type of `input`. Source: `tf.ones_like`."""
    return jnp.ones_like(as_tensor(input), dtype)


def fill(dims: ShapeLike, value: TensorLike, name: str | None = None) -> jax.Array:
    """Returns an array of shape `dims` that holds `value` everywhere. Source: `tf.fill`."""
    return jnp.full(as_shape(dims), as_tensor(value))


def eye(
    num_rows: int,
    num_columns: int | None = None,
    batch_shape: ShapeLike | None = None,
    dtype: DType = np.float32,
    name: str | None = None,
) -> jax.Array:
    """Returns the unit matrix, or as many as `batch_shape` says. Source: `tf.eye`."""
    one = jnp.eye(num_rows, num_columns, dtype=jax.dtypes.canonicalize_dtype(dtype))
    return one if batch_shape is None else jnp.broadcast_to(one, (*as_shape(batch_shape), *one.shape))


def range(
    start: TensorLike, limit: TensorLike = None, delta: TensorLike = 1, dtype: DType = None, name: str | None = None
) -> jax.Array:
    """Returns evenly spaced numbers; int32 for Python ints, as in TensorFlow.

    Raises:
      ConcretizationTypeError: a compiled function is to find out how many they are.

    Source: `tf.range`.
    """
    # A single argument is the limit, as Python's own `range` has it.
    start, limit = (0, start) if limit is None else (start, limit)
    if dtype is None:
        dtype = jnp.result_type(*(as_tensor(value).dtype for value in (start, limit, delta)))
    try:
        return jnp.arange(start, limit, delta, dtype=jax.dtypes.canonicalize_dtype(dtype))
    except jax.errors.ConcretizationTypeError as error:
        error.add_note(
            f"HINT: tf.range({start}, {limit}, {delta}) is to be as long as a tensor says, which has no value yet "
            "while the function is compiled. Give tf.range a number of Python, steps=8 in place of "
            "steps=tf.constant(8), or write tf.while_loop for a loop over it."
        )
        raise


def linspace(start: TensorLike, stop: TensorLike, num: int, name: str | None = None, axis: int = 0) -> jax.Array:
    """Returns `num` evenly spaced numbers, both ends included; float64 of integers. Source: `tf.linspace`."""
    first, last = as_tensor(start), as_tensor(stop)
    integral = jnp.issubdtype(first.dtype, jnp.integer)
    dtype = jax.dtypes.canonicalize_dtype(np.float64) if integral else first.dtype
    return jnp.linspace(first, last, num, axis=axis, dtype=dtype)


def cast(x: TensorLike, dtype: DType, name: str | None = None) -> Any:
    """Returns `x` with another element type. Source: `tf.cast`."""
    return as_tensor(as_tensor(x), dtype)


def shape(input: TensorLike, out_type: DType = np.int32, name: str | None = None) -> Any:
    """Returns the shape as a NumPy array on the host: shapes are known while a function is traced.

    While a Keras model is made, the number of rows is a symbol in it.

    Source: `tf.shape`, which is only known when a graph runs.
    """
    lengths = as_tensor(input).shape
    return np.asarray(lengths, object if any(map(jax.export.is_symbolic_dim, lengths)) else out_type)


def size(input: TensorLike, out_type: DType = np.int32, name: str | None = None) -> Any:
    """Returns the number of elements. Source: `tf.size`."""
    # A scalar of NumPy's, which Python takes for a number.
    return np.asarray(as_tensor(input).size, out_type)[()]


def rank(input: TensorLike, name: str | None = None) -> Any:
    """Returns the number of axes. Source: `tf.rank`."""
    return np.int32(as_tensor(input).ndim)


def _arrays(*arrays: Any) -> Any:
    """NumPy for arrays of strings, which JAX has not; else JAX's."""
    return np if any(array.dtype.kind == "O" for array in arrays) else jnp


def reshape(tensor: TensorLike, shape: ShapeLike, name: str | None = None) -> Any:
    """Returns the array in another shape, of which one entry may be -1. Source: `tf.reshape`."""
    array, wanted = as_tensor(tensor), as_shape(shape)
    empty = any(isinstance(length, int) and not length for length in (*array.shape, 1))
    if empty and 0 in wanted and wanted.count(-1) == 1:
        # How many there are of nothing, TensorFlow tells by the axes that are not empty.
        length = math.prod(one or 1 for one in array.shape) // math.prod(one or 1 for one in wanted if one != -1)
        wanted = tuple(length if one == -1 else one for one in wanted)
    return array.reshape(wanted)


def expand_dims(input: TensorLike, axis: int, name: str | None = None) -> Any:
    """Inserts an axis of length 1. Source: `tf.expand_dims`."""
    array = as_tensor(input)
    return _arrays(array).expand_dims(array, axis)


def squeeze(input: TensorLike, axis: Axis = None, name: str | None = None) -> Any:
    """Removes axes of length 1. Source: `tf.squeeze`."""
    array = as_tensor(input)
    return _arrays(array).squeeze(array, tuple(axis) if isinstance(axis, list) else axis)


def transpose(
    a: TensorLike, perm: Sequence[int] | None = None, conjugate: bool = False, name: str | None = None
) -> Any:
    """Permutes the axes; reverses them by default. Source: `tf.transpose`."""
    array = as_tensor(a)
    return _arrays(array).transpose(jnp.conj(array) if conjugate else array, perm)


def stack(values: TensorLike, axis: int = 0, name: str | None = None) -> Any:
    """Joins arrays along a new axis. Source: `tf.stack`."""
    arrays = list(map(as_tensor, values))
    return _arrays(*arrays).stack(arrays, axis)


def unstack(value: TensorLike, num: int | None = None, axis: int = 0, name: str | None = None) -> list[Any]:
    """Returns the slices along an axis. Source: `tf.unstack`."""
    array = as_tensor(value)
    if num is not None and num != array.shape[axis]:
        raise ArgumentError(
            f"unstack: num={num}, but axis {axis} of shape {array.shape} is other. HINT: leave num out."
        )
    return list(jnp.moveaxis(array, axis, 0))


def concat(values: TensorLike, axis: int, name: str | None = None) -> Any:
    """Joins arrays along an axis. Source: `tf.concat`."""
    if any(isinstance(one, np.ndarray) for one in values) and all(map(_is_shape, values)):
        # Parts of shapes, such as `tf.shape(x)[:-1]` and `[3]`, which are known while a function is traced.
        return np.concatenate(list(map(host_array, values)), axis)
    arrays = list(map(as_tensor, values))
    return _arrays(*arrays).concatenate(arrays, axis)


def _is_shape(value: TensorLike) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iO"
    return isinstance(value, (list, tuple)) and all(
        isinstance(one, (int, np.integer)) or jax.export.is_symbolic_dim(one) for one in value
    )


def split(
    value: TensorLike, num_or_size_splits: TensorLike, axis: int = 0, num: int | None = None, name: str | None = None
) -> list[Any]:
    """Cuts an array along an axis: into a number of equal parts, or parts of given sizes.

    Args:
      value: the array.
      num_or_size_splits: the number of parts, or their sizes, of which one may be -1 for what is left.
      axis: the axis.
      num: accepted for compatibility, as is `name`.
      name: see `num`.

    Raises:
      ArgumentError: the sizes do not add up to the axis's length.

    Source: `tf.split`.
    """
    array = as_tensor(value)
    if not np.ndim(num_or_size_splits):
        return _arrays(array).split(array, int(num_or_size_splits), axis)
    sizes, length = list(as_shape(num_or_size_splits)), array.shape[axis]
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = length - builtins.sum(sizes) - 1
    if any(size < 0 for size in sizes) or builtins.sum(sizes) != length:
        raise ArgumentError(
            f"split: parts of {num_or_size_splits} of an axis of length {length}. HINT: sizes add up to the length; "
            "one may be -1."
        )
    # TensorFlow is given the sizes of all parts, NumPy and JAX the places between them.
    return _arrays(array).split(array, list(itertools.accumulate(sizes[:-1])), axis)


def tile(input: TensorLike, multiples: ShapeLike, name: str | None = None) -> Any:
    """Repeats an array along its axes.

    Raises:
      ShapeError: `multiples` has not one number for each axis.

    Source: `tf.tile`.
    """
    array = as_tensor(input)
    _check_axes("multiples", multiples, (array.ndim,), array)
    return _arrays(array).tile(array, as_shape(multiples))


def pad(
    tensor: TensorLike,
    paddings: ShapeLike,
    mode: str = "CONSTANT",
    constant_values: TensorLike = 0,
    name: str | None = None,
) -> Any:
    """Pads with a constant, `"REFLECT"` or `"SYMMETRIC"`.

    Raises:
      ShapeError: `paddings` has not one pair for each axis, or a pair is wider than what is mirrored.
      ArgumentError: another mode.
      ArgumentTypeError: `constant_values` has fractions that the type of `tensor` has not.

    Source: `tf.pad`.
    """
    array, how = as_tensor(tensor), mode.upper()
    if how not in ("CONSTANT", "REFLECT", "SYMMETRIC"):
        raise ArgumentError(f"pad: mode={mode!r}. HINT: write 'CONSTANT', 'REFLECT' or 'SYMMETRIC'.")
    _check_axes("paddings", paddings, (array.ndim, 2), array)
    if not array.ndim:
        return array
    widths = [tuple(pair) for pair in np.asarray(paddings).tolist()]
    if how == "CONSTANT":
        # 0 stands for what is zero in any type.
        number = isinstance(constant_values, int) and not constant_values
        return jnp.pad(array, widths, constant_values=0 if number else as_typed_tensor(constant_values, array.dtype))
    for pair, length in zip(widths, array.shape, strict=True):
        # The element at the edge is not mirrored by REFLECT.
        if not jax.export.is_symbolic_dim(length) and max(pair) > length - (how == "REFLECT"):
            raise ShapeError(
                f"pad: {pair} elements mirrored of an axis of length {length}. HINT: pad in several steps, or with a "
                "constant."
            )
    return jnp.pad(array, widths, mode=how.lower())


def _check_axes(name: str, given: ShapeLike, wanted: tuple[int, ...], array: Any) -> None:
    if np.shape(given) != wanted and (wanted[0] or np.size(given)):
        raise ShapeError(
            f"{name} have the shape {np.shape(given)}, not {wanted}, for an array of shape {array.shape}. "
            "HINT: give as many as the array has axes."
        )


def boolean_mask(tensor: TensorLike, mask: TensorLike, axis: int = 0, name: str | None = None) -> Any:
    """Picks where a mask holds; not in compiled functions, as how many is not known. Source: `tf.boolean_mask`."""
    array, chosen = as_tensor(tensor), np.asarray(mask)
    return array[(np.s_[:],) * axis + (chosen,)]


def slice(input_: TensorLike, begin: ShapeLike, size: ShapeLike, name: str | None = None) -> Any:
    """Cuts out a part by its first place and its lengths, -1 to the end.

    Raises:
      ArgumentError: the part is not within the array.
      ShapeError: `begin` or `size` has not one number for each axis.

    Source: `tf.slice`.
    """
    array = as_tensor(input_)
    for what, given in (("begin", begin), ("size", size)):
        _check_axes(what, given, (array.ndim,), array)
    begin, size = as_shape(begin), as_shape(size)
    for first, length, whole in zip(begin, size, array.shape, strict=True):
        known = not any(map(jax.export.is_symbolic_dim, (first, length, whole)))
        if known and not (0 <= first <= whole and -1 <= length <= whole - first):
            raise ArgumentError(
                f"slice: {length} elements from {first} of an axis of length {whole}. HINT: they must be within it; "
                "a size of -1 takes all to the end."
            )
    ends = ((first, None if length == -1 else first + length) for first, length in zip(begin, size, strict=True))
    return array[tuple(np.s_[first:end] for first, end in ends)]


def reverse(tensor: TensorLike, axis: Axis, name: str | None = None) -> Any:
    """Turns the order along axes round. Source: `tf.reverse`."""
    array = as_tensor(tensor)
    return _arrays(array).flip(array, tuple(np.atleast_1d(axis).tolist()))


def roll(input: TensorLike, shift: Axis, axis: Axis, name: str | None = None) -> Any:
    """Shifts along axes; what leaves at an end comes in at the other. Source: `tf.roll`."""
    array = as_tensor(input)
    return _arrays(array).roll(array, shift, axis)


def repeat(input: TensorLike, repeats: TensorLike, axis: int | None = None, name: str | None = None) -> Any:
    """Repeats each element. Source: `tf.repeat`."""
    array = as_tensor(input)
    return _arrays(array).repeat(array, np.asarray(repeats), axis)


def broadcast_to(input: TensorLike, shape: ShapeLike, name: str | None = None) -> Any:
    """Returns the array in a larger shape that it fits. Source: `tf.broadcast_to`."""
    array = as_tensor(input)
    return _arrays(array).broadcast_to(array, as_shape(shape))


def ensure_shape(x: TensorLike, shape: ShapeLike, name: str | None = None) -> Any:
    """Returns the array if it has that shape, where None is any length.

    Raises:
      ShapeError: it has another.

    Source: `tf.ensure_shape`.
    """
    array, wanted = as_tensor(x), tuple(shape)
    given = zip(wanted, array.shape, strict=False)
    if len(wanted) != array.ndim or any(one not in (None, length) for one, length in given):
        raise ShapeError(f"an array has the shape {array.shape}, not {wanted}. HINT: None stands for any length.")
    return array


def meshgrid(*args: TensorLike, indexing: str = "xy", name: str | None = None) -> list[jax.Array]:
    """Returns the coordinates of a grid. Source: `tf.meshgrid`."""
    return list(jnp.meshgrid(*map(as_tensor, args), indexing=indexing))


def where(condition: TensorLike, x: TensorLike = None, y: TensorLike = None, name: str | None = None) -> Any:
    """Picks from `x` or `y`; with the condition alone returns the places where it holds. Source: `tf.where`."""
    if x is None and y is None:
        return jnp.argwhere(as_tensor(condition))
    return jnp.where(as_tensor(condition), *operands(x, y))


allow_in_models(__name__, "jaxtribute.compat.tf", _IN_MODELS)
