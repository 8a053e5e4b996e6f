"""Numbers that pick from arrays, checked where they are known: `tf.gather` and its like."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.addons.compat.tf.conversion import TensorLike, as_tensor, as_typed_tensor
from jaxtribute._src.addons.compat.tf.specs import as_dtype
from jaxtribute._src.addons.compat.tf.symbolic import allow_in_models
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError
from jaxtribute.extending import row_ids
from jaxtribute.typing import DType

__all__ = ["gather", "gather_nd", "one_hot", "sequence_mask", "tensor_scatter_nd_update"]


def gather(
    params: TensorLike,
    indices: TensorLike,
    validate_indices: bool | None = None,
    axis: int | None = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Any:
    """Picks slices along an axis by their numbers; of each batch its own, over the first `batch_dims` axes.

    A number out of range that is only known when a compiled function runs gives zeros, as in TensorFlow on GPUs.

    Raises:
      ArgumentError: a number that is known is out of range.

    Source: `tf.gather`.
    """
    array, numbers = as_tensor(params), as_tensor(indices)
    batch = batch_dims + numbers.ndim if batch_dims < 0 else batch_dims
    # A negative number of axes counts from the last one of `params` then, as in TensorFlow.
    axis = batch_dims if axis is None else axis
    along = axis + array.ndim if axis < 0 else axis
    if not 0 <= along < array.ndim:
        raise ShapeError(f"gather: axis {axis} of shape {array.shape}. HINT: name an axis that there is.")
    numbers = checked(numbers, array.shape[along], f"axis {along} of shape {array.shape}")
    moved = _module(array).moveaxis(array, along, batch)
    found = _picked(moved, (*_batches(numbers.shape, batch), numbers))
    # The axes between the batch and the one that was picked from lie behind those of the numbers.
    rest = np.arange(along - batch)
    return _module(array).moveaxis(found, tuple(numbers.ndim + rest), tuple(batch + rest))


def gather_nd(params: TensorLike, indices: TensorLike, batch_dims: int = 0, name: str | None = None) -> Any:
    """Picks elements or slices by their places, which the last axis of `indices` holds; out of range as `gather`.

    Source: `tf.gather_nd`.
    """
    array, numbers = as_tensor(params), as_tensor(indices)
    return _picked(array, (*_batches(numbers.shape[:-1], batch_dims), *_places(array, numbers, batch_dims)))


def tensor_scatter_nd_update(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> jax.Array:
    """Returns a copy with other values at places as those of `gather_nd`.

    What is to be written out of range is left out where that is only known when a compiled function runs.

    Raises:
      ArgumentError: a place that is known is out of range.
      ArgumentTypeError: `updates` has another type than `tensor`.
      ShapeError: `updates` has another shape than what stands at the places.

    Source: `tf.tensor_scatter_nd_update`.
    """
    array, numbers = jnp.asarray(as_tensor(tensor)), as_tensor(indices)
    new = as_typed_tensor(updates, array.dtype)
    wanted = (*numbers.shape[:-1], *array.shape[numbers.shape[-1] :])
    if new.shape != wanted:
        raise ShapeError(f"updates have the shape {new.shape}, not {wanted}. HINT: give a value for each place.")
    return array.at[_places(array, numbers, 0)].set(new, mode="drop")


def checked(numbers: Any, length: Any, what: str) -> Any:
    """The numbers, of which none is negative any more; those that are only known later and out of range are `length`.

    Args:
      numbers: an array of integers.
      length: how many there are to pick from; a symbol while a Keras model is made.
      what: names what is picked from.

    Raises:
      ArgumentError: a number that is known is out of range.
      ArgumentTypeError: they are no integers.
    """
    if not jnp.issubdtype(numbers.dtype, jnp.integer):
        raise ArgumentTypeError(f"indices of {numbers.dtype}. HINT: give integers: tf.cast(indices, tf.int32).")
    return numbers if jax.export.is_symbolic_dim(length) else row_ids(numbers, length, what)


def _places(array: Any, numbers: Any, batch_dims: int) -> tuple[Any, ...]:
    lengths = array.shape[batch_dims:]
    if numbers.shape[-1] > len(lengths):
        raise ArgumentError(
            f"places of {numbers.shape[-1]} numbers in shape {array.shape}. HINT: give one for each axis, or for the "
            "first ones."
        )
    return tuple(
        checked(numbers[..., axis], lengths[axis], f"axis {batch_dims + axis} of shape {array.shape}")
        for axis in range(numbers.shape[-1])
    )


def _picked(array: Any, places: tuple[Any, ...]) -> Any:
    if array.dtype.kind == "O":  # strings, of which all is known
        return array[tuple(map(np.asarray, places))]
    return jnp.asarray(array).at[places].get(mode="fill", fill_value=0)


def _batches(shape: tuple[int, ...], axes: int) -> list[Any]:
    """The numbers along each of the first axes of a shape, as arrays of as many axes as it has."""
    return list(np.indices(shape, sparse=True)[:axes])


def _module(array: Any) -> Any:
    return np if array.dtype.kind == "O" else jnp


def sequence_mask(lengths: TensorLike, maxlen: Any = None, dtype: DType = np.bool_, name: str | None = None) -> Any:
    """Returns a mask that is true at the first places of each row, as many as its length says.

    Args:
      lengths: the lengths, of any shape.
      maxlen: the number of places; by default the largest length, which must be known.
      dtype: the type of the mask.
      name: accepted for compatibility.

    Source: `tf.sequence_mask`.
    """
    numbers = as_tensor(lengths)
    places = np.max(numbers, initial=0) if maxlen is None else maxlen
    return (jnp.arange(int(places), dtype=numbers.dtype) < jnp.expand_dims(numbers, -1)).astype(as_dtype(dtype))


def one_hot(
    indices: TensorLike,
    depth: int,
    on_value: TensorLike = None,
    off_value: TensorLike = None,
    axis: int | None = None,
    dtype: DType = None,
    name: str | None = None,
) -> jax.Array:
    """Returns vectors with `on_value` at one place each, 1 by default, in its type.

    Raises:
      ArgumentTypeError: `on_value`, `off_value` and `dtype` do not agree, or `indices` are no integers.

    Source: `tf.one_hot`.
    """
    places = as_tensor(indices)
    if not jnp.issubdtype(places.dtype, jnp.integer):
        raise ArgumentTypeError(f"indices of {places.dtype}. HINT: give integers: tf.cast(indices, tf.int32).")
    values = [None if value is None else as_tensor(value, dtype) for value in (on_value, off_value)]
    kinds = {value.dtype for value in values if value is not None}
    if len(kinds) > 1:
        raise ArgumentTypeError(f"on_value={on_value} and off_value={off_value} have two types. HINT: pass dtype.")
    kind = kinds.pop() if kinds else jax.dtypes.canonicalize_dtype(dtype or np.float32)
    on, off = (jnp.asarray(one if one is not None else rest, kind) for one, rest in zip(values, (1, 0), strict=True))
    return jnp.where(jax.nn.one_hot(places, depth, axis=-1 if axis is None else axis, dtype=bool), on, off)


allow_in_models(__name__, "jaxtribute.compat.tf", ("gather", "gather_nd", "one_hot"))
