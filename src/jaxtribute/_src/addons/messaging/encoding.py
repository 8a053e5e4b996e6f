"""Arguments and results of closures as plain structures and arrays, without pickling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Mirrored, PerReplica, Variable
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import ArrayLike, Nest

_PLAIN = (bool, int, float, str, bytes, type(None))
_DEPTH = 100
"""Greatest depth of nested containers in a message; a level takes up to three of MessagePack's 511."""


class NotPlainError(TypeError):
    """A value that has to travel another way."""


def encode(value: Nest, arrays: list[Any], depth: int = 0) -> Any:
    """Returns `value` as a structure of lists and maps; its arrays are appended to `arrays`.

    Args:
      value: numbers, strings, arrays, and tuples, lists and dictionaries of them.
      arrays: takes the arrays, in order.
      depth: how many containers are around the value.

    Raises:
      NotPlainError: something in it is of another type, or nested too deeply.
    """
    if type(value) in _PLAIN:
        # MessagePack has integers of 64 bits only; larger ones travel as pickles.
        if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
            raise NotPlainError
        return ["v", value]
    if depth >= _DEPTH:
        raise NotPlainError  # messages have a limit of their own, and a list may hold itself
    if isinstance(value, Variable):
        value = value.read_value()
    if isinstance(value, (PerReplica, Mirrored)):
        # Several components would come back as one array, without the devices that they are on.
        if len(value.values) != 1:
            raise NotPlainError
        value = value.values[0]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        arrays.append(_plain_array(value))
        return [_kind_of(value)]
    # Of these very types: a named tuple, or a list of a class of its own, would come back without its class.
    if type(value) in (tuple, list):
        kind = "t" if isinstance(value, tuple) else "l"
        return [kind, [encode(item, arrays, depth + 1) for item in cast("Sequence[Any]", value)]]
    if type(value) is dict:
        return ["d", [_encode_item(item, arrays, depth + 1) for item in cast("Any", value).items()]]
    raise NotPlainError


def _kind_of(array: ArrayLike) -> str:
    """Returns the library whose array it is, as `decode` is told."""
    if isinstance(array, jax.Array):
        return "w" if array.weak_type else "j"
    return "s" if isinstance(array, np.generic) else "a"


def _encode_item(item: tuple[Any, Any], arrays: list[Any], depth: int) -> list[Any]:
    in_key: list[Any] = []
    key = encode(item[0], in_key, depth)
    if in_key:
        raise NotPlainError  # a NumPy scalar would come back as an array, which is no key
    return [key, encode(item[1], arrays, depth)]


def _plain_array(value: ArrayLike) -> np.ndarray[Any, Any]:
    """Returns an array as NumPy's, if the name of its type says all about its elements."""
    if isinstance(value, jax.Array):
        if jnp.issubdtype(value.dtype, jax.dtypes.extended):
            raise NotPlainError  # keys of random numbers
    elif isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.memmap):
        raise NotPlainError  # such as a masked array, which is more than its elements
    array = np.asarray(value)
    if array.dtype == object or array.dtype.names or array.dtype.kind in "MmUS":
        raise NotPlainError
    try:
        named = np.dtype(array.dtype.name)
    except TypeError:
        raise NotPlainError from None
    if named != array.dtype.newbyteorder("="):
        raise NotPlainError
    return array


def as_jax(array: np.ndarray[Any, Any]) -> jax.Array:
    """Returns a NumPy array as a JAX array.

    Args:
      array: of any shape and of a type that JAX knows.

    Raises:
      ArgumentError: it holds integers that JAX's type for them, of 32 bits unless `jax_enable_x64` is on, cannot hold.
    """
    made = jnp.asarray(array)
    if made.dtype != array.dtype and array.dtype.kind in "iu" and not np.array_equal(np.asarray(made), array):
        raise ArgumentError(
            f"an array of {array.dtype} with values from {array.min()} to {array.max()} does not fit {made.dtype}; "
            'that is all that JAX has now. HINT: jax.config.update("jax_enable_x64", True), or pass smaller numbers.'
        )
    return made


def as_sent(kind: str, array: np.ndarray[Any, Any]) -> Any:
    """Returns an array as of the library that it was sent from: JAX's, or NumPy's.

    Args:
      kind: what `encode` says of it.
      array: its elements.

    Raises:
      ArgumentError: integers that JAX cannot hold here, though it could where they were sent.
    """
    if kind == "a":
        return array
    if kind == "s":
        return array[()]
    made = as_jax(array)
    if kind == "w":
        # A weak type gives way to those that it meets. JAX has it from Python's numbers alone, and keeps it in writes.
        made = jnp.full(array.shape, array.dtype.type(0).item()).at[...].set(made)
    return made


def as_numpy(kind: str, array: np.ndarray[Any, Any]) -> Any:
    """Returns an array as NumPy's, whatever it was."""
    del kind
    return array


def decode(
    plain: Sequence[Any], arrays: Iterator[Any], made: Callable[[str, np.ndarray[Any, Any]], Any] = as_numpy
) -> Any:
    """Returns the value that `encode` was given.

    Args:
      plain: the structure.
      arrays: the arrays, in order.
      made: makes of each what it is to be here.
    """
    kind, *rest = plain
    if kind == "v":
        return rest[0]
    if kind == "d":
        return {decode(key, arrays, made): decode(item, arrays, made) for key, item in rest[0]}
    if kind in "tl":
        items = [decode(item, arrays, made) for item in rest[0]]
        return tuple(items) if kind == "t" else items
    return made(kind, next(arrays))
