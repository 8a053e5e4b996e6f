"""Arguments and results of closures as plain structures and arrays, without pickling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxtribute.values.distributed import ReplicaValues
from jaxtribute.values.variable import Variable

_PLAIN = (bool, int, float, str, bytes, type(None))


class NotPlainError(TypeError):
    """A value that has to travel another way."""


def encode(value: Any, arrays: list[Any]) -> Any:
    """`value` as a structure of lists and maps; its arrays are appended to `arrays`.

    Raises:
      NotPlainError: something in it is neither a number, a string, an array nor a tuple, list or dict of such.
    """
    if type(value) in _PLAIN:
        if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
            raise NotPlainError
        return ["v", value]
    if isinstance(value, Variable):
        value = value.read_value()
    if isinstance(value, ReplicaValues):
        if len(value.values) != 1:
            raise NotPlainError
        value = value.values[0]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype == object or array.dtype.names or array.dtype.kind in "MmUS":
            raise NotPlainError
        arrays.append(array)
        return ["a"]
    if type(value) in (tuple, list):
        kind = "t" if isinstance(value, tuple) else "l"
        return [kind, [encode(item, arrays) for item in cast("Sequence[Any]", value)]]
    if type(value) is dict:
        return ["d", [[encode(key, arrays), encode(item, arrays)] for key, item in cast("Any", value).items()]]
    raise NotPlainError


def decode(plain: Sequence[Any], arrays: Iterator[Any]) -> Any:
    """The inverse of `encode`; arrays come back as NumPy arrays."""
    kind, *rest = plain
    if kind == "v":
        return rest[0]
    if kind == "a":
        return next(arrays)
    if kind == "d":
        return {decode(key, arrays): decode(item, arrays) for key, item in rest[0]}
    items = [decode(item, arrays) for item in rest[0]]
    return tuple(items) if kind == "t" else items
