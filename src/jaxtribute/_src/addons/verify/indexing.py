"""XLA's gather, scatter and sort on arrays of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def indexed_axes(params: Mapping[str, Any]) -> Sequence[int]:
    """The axes in which a gather or scatter finds what it is given indices of; none for other operations."""
    numbers = params.get("dimension_numbers")
    return getattr(numbers, "start_index_map", None) or getattr(numbers, "scatter_dims_to_operand_dims", ())


def _grid(
    starts: dict[int, Any], sizes: Sequence[int], shape: Sequence[int], batch: Sequence[int], mode: object
) -> tuple[tuple[Any, ...], Any]:
    """Indices of windows of an array.

    Args:
      starts: for axes of the array the first index of each window, of shape `batch`; others begin at 0.
      sizes: the windows' lengths.
      shape: that of the array.
      batch: the shape of the windows' numbers.
      mode: what becomes of windows that are partly outside.

    Returns:
      For each axis its indices, which broadcast to `(*batch, *sizes)`; and, of shape `batch`, which windows are inside.
    """
    inside = np.ones(tuple(batch), bool)
    indices: list[Any] = []
    for axis, (size, whole) in enumerate(zip(sizes, shape, strict=True)):
        first = np.broadcast_to(starts.get(axis, 0), tuple(batch)).astype(np.int64)
        inside &= (first >= 0) & (first <= whole - size)
        first = np.clip(first, 0, max(whole - size, 0))
        window = np.arange(size).reshape([-1 if other == axis else 1 for other in range(len(sizes))])
        indices.append(first.reshape(*batch, *[1] * len(sizes)) + window)
    if "DROP" not in str(mode).upper():
        inside[...] = True
    return tuple(indices), inside


def _starts(
    indices: Any, index_map: Sequence[int], batching: Sequence[int], index_batching: Sequence[int]
) -> tuple[dict[int, Any], tuple[int, ...]]:
    batch = indices.shape[:-1]
    starts: dict[int, Any] = {axis: indices[..., place] for place, axis in enumerate(index_map)}
    for axis, place in zip(batching, index_batching, strict=True):
        starts[axis] = np.arange(batch[place]).reshape([-1 if one == place else 1 for one in range(len(batch))])
    return starts, batch


def gather(operand: Any, indices: Any, *, dimension_numbers: Any, slice_sizes: Any, mode: Any, **params: Any) -> Any:
    """Does what `lax.gather` does."""
    numbers = dimension_numbers
    starts, batch = _starts(
        indices, numbers.start_index_map, numbers.operand_batching_dims, numbers.start_indices_batching_dims
    )
    places, inside = _grid(starts, slice_sizes, operand.shape, batch, mode)
    if operand.size:
        found = operand[places]
    else:
        found = np.zeros((*batch, *slice_sizes), operand.dtype)
    if not inside.all():
        fill = params.get("fill_value")
        if fill is None:
            kind = operand.dtype.kind
            fill = np.nan if kind in "fc" else True if kind == "b" else _odd(operand.dtype)
        found = np.where(inside.reshape(*batch, *[1] * operand.ndim), found, np.asarray(fill, operand.dtype))
    gone = [*numbers.collapsed_slice_dims, *numbers.operand_batching_dims]
    found = np.squeeze(found, tuple(len(batch) + axis for axis in gone))
    windows = iter(range(len(batch), found.ndim))
    rows = iter(range(len(batch)))
    offsets = set(numbers.offset_dims)
    return np.transpose(found, [next(windows) if axis in offsets else next(rows) for axis in range(found.ndim)])


def _odd(dtype: Any) -> Any:
    limits = np.iinfo(dtype)
    return limits.min if dtype.kind == "i" else limits.max


def scatter(how: Callable[..., None] | None) -> Callable[..., Any]:
    """The function that does what one of `lax.scatter...` does.

    Args:
      how: adds updates in place, such as `np.add.at`; None to replace.
    """

    def apply(operand: Any, indices: Any, updates: Any, *, dimension_numbers: Any, mode: Any, **_: Any) -> Any:
        numbers = dimension_numbers
        batching = numbers.operand_batching_dims
        starts, batch = _starts(
            indices, numbers.scatter_dims_to_operand_dims, batching, numbers.scatter_indices_batching_dims
        )
        windows = list(numbers.update_window_dims)
        rows = [axis for axis in range(updates.ndim) if axis not in windows]
        moved = np.transpose(updates, [*rows, *windows])
        gone = {*numbers.inserted_window_dims, *batching}
        lengths = iter(moved.shape[len(rows) :])
        sizes = [1 if axis in gone else next(lengths) for axis in range(operand.ndim)]
        moved = moved.reshape(*batch, *sizes)
        places, inside = _grid(starts, sizes, operand.shape, batch, mode)
        result = np.array(operand)
        if not moved.size:
            return result
        places = np.broadcast_arrays(*places) if places else ()
        places = tuple(np.broadcast_to(place, moved.shape)[inside] for place in places)
        given = moved[inside]
        if how is None:
            result[places] = given
        else:
            how(result, places, given)
        return result

    return apply


def sort(*operands: Any, dimension: int, num_keys: int, **_: Any) -> list[Any]:
    """Does what `lax.sort` does, stably."""
    keys = [operands[place] for place in reversed(range(num_keys))]
    order = (
        np.lexsort(np.stack(keys), axis=dimension)
        if len({key.dtype for key in keys}) == 1
        else _lexsorted(keys, dimension)
    )
    return [np.take_along_axis(operand, order, dimension) for operand in operands]


def _lexsorted(keys: Sequence[Any], axis: int) -> Any:
    order: Any = None
    for key in keys:
        given = key if order is None else np.take_along_axis(key, order, axis)
        step = np.argsort(given, axis=axis, kind="stable")
        order = step if order is None else np.take_along_axis(order, step, axis)
    return order


def top_k(operand: Any, *, k: int, **_: Any) -> list[Any]:
    """Does what `lax.top_k` does along the last axis."""
    order = np.argsort(-operand if operand.dtype.kind == "f" else -operand.astype(np.int64), axis=-1, kind="stable")
    chosen = order[..., :k]
    return [np.take_along_axis(operand, chosen, -1), chosen.astype(np.int32)]
