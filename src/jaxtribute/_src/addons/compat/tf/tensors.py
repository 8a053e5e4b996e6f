"""Arrays by TensorFlow's rules: making them, shaping them and picking from them."""

from __future__ import annotations

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
)
from jaxtribute._src.addons.compat.tf.symbolic import allow_in_models
from jaxtribute.errors import ArgumentError, ShapeError
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
    "gather",
    "gather_nd",
    "identity",
    "is_tensor",
    "linspace",
    "meshgrid",
    "newaxis",
    "one_hot",
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
    "tensor_scatter_nd_update",
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
    "gather",
    "gather_nd",
    "identity",
    "one_hot",
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


def convert_to_tensor(
    value: TensorLike, dtype: DType = None, dtype_hint: object = None, name: str | None = None
) -> Any:
    """Returns `value` as an array; arrays are returned as they are, and `IndexedSlices` as all rows.

    Raises:
      ArgumentTypeError: `value` is a tensor of another type, or has fractions that `dtype` has not.

    Source: `tf.convert_to_tensor`.
    """
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
    """Returns evenly spaced numbers; int32 for Python ints, as in TensorFlow. Source: `tf.range`."""
    # A single argument is the limit, as Python's own `range` has it.
    start, limit = (0, start) if limit is None else (start, limit)
    if dtype is None:
        dtype = jnp.result_type(*(as_tensor(value).dtype for value in (start, limit, delta)))
    return jnp.arange(start, limit, delta, dtype=jax.dtypes.canonicalize_dtype(dtype))


def linspace(start: TensorLike, stop: TensorLike, num: int, name: str | None = None, axis: int = 0) -> jax.Array:
    """Returns `num` evenly spaced numbers, both ends included. Source: `tf.linspace`."""
    return jnp.linspace(as_tensor(start), as_tensor(stop), num, axis=axis)


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
    return as_tensor(tensor).reshape(as_shape(shape))


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


def split(value: TensorLike, num_or_size_splits: TensorLike, axis: int = 0, name: str | None = None) -> list[Any]:
    """Cuts an array along an axis: into a number of equal parts, or parts of given sizes. Source: `tf.split`."""
    if isinstance(num_or_size_splits, int):
        return jnp.split(as_tensor(value), num_or_size_splits, axis)
    # TensorFlow is given the sizes of all parts, NumPy and JAX the places between them.
    return jnp.split(as_tensor(value), list(map(int, np.cumsum(num_or_size_splits)[:-1])), axis)


def tile(input: TensorLike, multiples: ShapeLike, name: str | None = None) -> Any:
    """Repeats an array along its axes. Source: `tf.tile`."""
    array = as_tensor(input)
    return _arrays(array).tile(array, tuple(np.atleast_1d(multiples).tolist()))


def pad(
    tensor: TensorLike,
    paddings: ShapeLike,
    mode: str = "CONSTANT",
    constant_values: TensorLike = 0,
    name: str | None = None,
) -> Any:
    """Pads with a constant, `"REFLECT"` or `"SYMMETRIC"`. Source: `tf.pad`."""
    widths = [tuple(pair) for pair in np.asarray(paddings).tolist()]
    if mode.upper() == "CONSTANT":
        return jnp.pad(as_tensor(tensor), widths, constant_values=constant_values)
    return jnp.pad(as_tensor(tensor), widths, mode=mode.lower())


def gather(
    params: TensorLike,
    indices: TensorLike,
    validate_indices: bool | None = None,
    axis: int | None = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Any:
    """Picks slices along an axis by their numbers; of each batch its own, over the first `batch_dims` axes.

    Source: `tf.gather`.
    """
    array, numbers = as_tensor(params), as_tensor(indices)
    batch = batch_dims + numbers.ndim if batch_dims < 0 else batch_dims
    # A negative number of axes counts from the last one of `params` then, as in TensorFlow.
    axis = batch_dims if axis is None else axis
    along = axis + array.ndim if axis < 0 else axis
    if not batch:
        return _arrays(array).take(array, numbers, along)
    moved = _arrays(array).moveaxis(array, along, batch)
    found = moved[(*_batches(numbers.shape, batch), numbers)]
    # The axes between the batch and the one that was picked from lie behind those of the numbers.
    rest = np.arange(along - batch)
    return _arrays(array).moveaxis(found, tuple(numbers.ndim + rest), tuple(batch + rest))


def gather_nd(params: TensorLike, indices: TensorLike, batch_dims: int = 0, name: str | None = None) -> Any:
    """Picks elements or slices by their places, which the last axis of `indices` holds.

    Source: `tf.gather_nd`.
    """
    places = _places(indices)
    return as_tensor(params)[(*_batches(as_tensor(indices).shape[:-1], batch_dims), *places)]


def _batches(shape: Sequence[int], axes: int) -> list[Any]:
    """The numbers along each of the first axes of a shape, as arrays of as many axes as it has."""
    return list(np.indices(shape, sparse=True)[:axes])


def tensor_scatter_nd_update(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> jax.Array:
    """Returns a copy with other values at places as those of `gather_nd`. Source: `tf.tensor_scatter_nd_update`."""
    return jnp.asarray(as_tensor(tensor)).at[_places(indices)].set(as_tensor(updates))


def _places(indices: TensorLike) -> tuple[Any, ...]:
    places = as_tensor(indices)
    return tuple(places[..., axis] for axis in np.arange(places.shape[-1]))


def boolean_mask(tensor: TensorLike, mask: TensorLike, axis: int = 0, name: str | None = None) -> Any:
    """Picks where a mask holds; not in compiled functions, as how many is not known. Source: `tf.boolean_mask`."""
    array, chosen = as_tensor(tensor), np.asarray(mask)
    return array[(np.s_[:],) * axis + (chosen,)]


def slice(input_: TensorLike, begin: ShapeLike, size: ShapeLike, name: str | None = None) -> Any:
    """Cuts out a part by its first place and its lengths, -1 to the end. Source: `tf.slice`."""
    array = as_tensor(input_)
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
    return jnp.where(as_tensor(condition), as_tensor(x), as_tensor(y))


def one_hot(
    indices: TensorLike,
    depth: int,
    on_value: TensorLike = 1,
    off_value: TensorLike = 0,
    axis: int = -1,
    dtype: DType = np.float32,
) -> jax.Array:
    """Returns vectors with `on_value` at one place each. Source: `tf.one_hot`."""
    hot = jax.nn.one_hot(as_tensor(indices), depth, axis=axis, dtype=bool)
    return jnp.where(hot, as_tensor(on_value, dtype), as_tensor(off_value, dtype))


allow_in_models(__name__, "jaxtribute.compat.tf", _IN_MODELS)
