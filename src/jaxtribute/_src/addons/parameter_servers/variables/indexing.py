"""Rows that an index of a split variable needs, so that only they are fetched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxtribute.errors import ArgumentTypeError
from jaxtribute.typing import Leaf


def with_arrays(key: Leaf) -> Any:
    """Returns an index with arrays for its lists, as NumPy takes them; JAX refuses lists."""
    if isinstance(key, tuple):
        return tuple(with_arrays(part) for part in key)
    return np.asarray(key, None if key else np.int32) if isinstance(key, list) else key


def wanted_rows(key: Leaf, shape: Sequence[int]) -> tuple[np.ndarray[Any, Any], tuple[Any, ...]] | None:
    """Returns the rows that `key` picks from an array, and the index that gives the same of these rows alone.

    For example `[[5, 1], 0]` of 7 rows of 2 needs the rows `[5, 1]`, of which it is `[[0, 1], 0]`.

    Args:
      key: what stands between the brackets, as `with_arrays` gives it.
      shape: the array's shape, of at least one axis.

    Returns:
      The rows and the index; None if the rows are not known before the array is, or are all.

    Raises:
      IndexError: a row that there is not, or a mask of another shape.
    """
    parts: tuple[Any, ...] = key if isinstance(key, tuple) else (key,)
    if not parts:
        return None
    first, *rest = parts
    if isinstance(first, slice):
        if not all(bound is None or isinstance(bound, (int, np.integer)) for bound in _bounds(first)):
            return None
        return np.arange(shape[0])[first], (slice(None), *rest)
    if isinstance(first, (bool, np.bool_)):
        return None  # a mask without axes
    if isinstance(first, (int, np.integer)):
        return _rows(shape, first).reshape(1), (0, *rest)
    if not isinstance(first, np.ndarray) or not first.ndim:
        return None
    index: list[Any] = [first]
    if first.dtype == np.bool_:
        if first.shape != tuple(shape[: first.ndim]):
            raise IndexError(
                f"a mask of shape {first.shape} does not fit a variable of shape {tuple(shape)}. "
                "HINT: a mask has the variable's shape, or that of its first axes."
            )
        # The places of what is true, along each axis, pick the same.
        index = list(np.nonzero(first))
    elif first.dtype.kind not in "iu":
        raise ArgumentTypeError(
            f"an index of dtype {first.dtype}. HINT: index with integers, slices, or masks of booleans."
        )
    # A row that is named twice is fetched once.
    rows, places = np.unique(_rows(shape, index[0]), return_inverse=True)
    return rows, (places.reshape(index[0].shape), *index[1:], *rest)


def _rows(shape: Sequence[int], index: Any) -> Any:
    try:
        return np.arange(shape[0])[index]
    except IndexError as error:
        raise IndexError(f"a variable of shape {tuple(shape)}: {error}. HINT: name rows that it has.") from None


def _bounds(part: slice) -> tuple[Any, Any, Any]:
    return part.start, part.stop, part.step
