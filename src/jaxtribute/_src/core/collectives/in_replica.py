"""Collectives as one replica of a program calls them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.core.collectives.summation import AutoSum, Summation
from jaxtribute._src.core.jaxprs.making import equal, identity
from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.enums import ReduceOp, reduction_of
from jaxtribute._src.core.values.mesh import AXIS, reduced
from jaxtribute._src.core.values.numbers import summed, widened


def elements_along(shape: Sequence[int], axes: Sequence[int]) -> int:
    """Number of elements of an array that a reduction along `axes` makes one of."""
    return math.prod(shape[axis] for axis in axes)


def contributions(values: Sequence[Any], op: ReduceOp, replicas: int, idle: tuple[int, ...]) -> tuple[list[Any], int]:
    """This replica's contribution to a reduction, and the number of replicas that a mean counts.

    Args:
      values: this replica's arrays.
      op: the reduction.
      replicas: how many replicas there are.
      idle: ids of the replicas that got no data. A mean leaves them out; to a sum they give zero in place of
        NaN, which is what means over no examples come to.
    """
    reduction = reduction_of(op)
    arrays = list(map(reduction.prepared, values))
    if not idle:
        return arrays, replicas
    mine = is_idle(idle, replicas)
    return [reduction.kept(array, mine) for array in arrays], replicas - len(idle)


def all_reduce(
    values: Sequence[Any],
    op: ReduceOp,
    replicas: int,
    summation: Summation | None = None,
    idle: tuple[int, ...] = (),
) -> list[Any]:
    """Reduces each array over the replicas; every replica gets the result.

    Differentiable: the gradient is the all-reduce of the cotangents with the same operation.

    Args:
      values: this replica's arrays.
      op: the operation.
      replicas: the number of replicas.
      summation: the way to add up; `AutoSum` by default.
      idle: the replicas without data, which contribute nothing.
    """
    totals, count = _added(values, op, replicas, summation, idle)
    finish = reduction_of(op).finish
    return [finish(total, count, jnp.result_type(value)) for total, value in zip(totals, values, strict=True)]


def alone(values: Sequence[Any], op: ReduceOp) -> list[Any]:
    """Returns what each array comes to with one replica: of the dtype that several would give it."""
    reduction, arrays = reduction_of(op), list(map(jnp.asarray, values))
    return [
        array if jnp.issubdtype(array.dtype, jnp.inexact) else reduction.finish(reduction.prepared(array), 1)
        for array in arrays
    ]


def _added(
    values: Sequence[Any], op: ReduceOp, replicas: int, summation: Summation | None, idle: tuple[int, ...]
) -> tuple[list[Any], int]:
    """The sums of what the replicas contribute, to be finished, and the number of replicas that a mean counts."""
    arrays, count = contributions(values, op, replicas, idle)
    totals = (summation or AutoSum())(arrays, replicas)
    if idle:
        # Backwards too: what the cotangents of idle replicas say comes from padding, and must not get into the sum.
        totals = [guarded(total, op, idle, replicas) for total in totals]
    return totals, count


def all_gather(value: Numeric, axis: int) -> Any:
    """Concatenates the replicas' arrays along `axis`; every replica gets the result."""
    if not value.shape[axis]:
        return equal(value)  # XLA gathers nothing, and refuses to
    return lax.all_gather(value, AXIS, axis=axis, tiled=True)


def gather_uneven(value: Numeric, axis: int, lengths: Sequence[int]) -> Any:
    """Concatenates the replicas' arrays along `axis`, where their lengths differ; every replica gets the result.

    Args:
      value: this replica's array.
      axis: the axis.
      lengths: every replica's length along it.
    """
    own = value.shape[axis]
    largest = max(own, *lengths)
    if not largest or set(lengths) == {own}:
        return all_gather(value, axis)
    # All bring as many rows as the longest: a collective takes arrays of one shape. What is added is cut off again.
    padding = [(0, largest - own if place == axis else 0, 0) for place in range(value.ndim)]
    padded = rows(lax.pad(value, jnp.zeros((), value.dtype), padding))
    parts = [lax.slice_in_dim(padded[place], 0, length, axis=axis) for place, length in enumerate(lengths) if length]
    return lax.concatenate(parts, axis)


def rows(value: Numeric) -> Any:
    """Stacks the replicas' arrays along a new axis 0; every replica gets the result."""
    return lax.all_gather(value, AXIS, axis=0, tiled=False)


def from_replica(value: Numeric, replica: int) -> Any:
    """The array of one replica, on every replica."""
    array = jnp.asarray(value)
    # A sum in which all others give zero: XLA has no broadcast from one replica, and a gather would bring all arrays.
    kept = jnp.where(lax.axis_index(AXIS) == replica, array, jnp.zeros_like(array))
    if array.dtype == jnp.bool_:
        return lax.psum(kept.astype(jnp.int8), AXIS).astype(jnp.bool_)
    return reduced(lax.psum, kept)


def reduce_local(
    value: Numeric, op: ReduceOp, axes: tuple[int, ...] | None, replicas: int, idle: tuple[int, ...], uneven: bool
) -> jax.Array:
    """Reduces this replica's array along `axes`, then over the replicas.

    Args:
      value: this replica's array.
      op: the reduction.
      axes: the axes to reduce besides, or None.
      replicas: how many replicas there are.
      idle: the replicas that got no data; see `contributions`.
      uneven: whether the replicas' shapes may differ.
    """
    if axes is None:
        return all_reduce([value], op, replicas, idle=idle)[0]
    reduction = reduction_of(op)
    array = reduction.prepared(value)
    # Short floats stay wide until the replicas' sums are added up: rounded twice, the total would be another one.
    (total,), _ = _added([summed(widened(array), axes)], op, replicas, None, idle)
    count: Any = elements_along(array.shape, axes)
    if uneven:
        # The true number of elements of all replicas, as an array: psum would multiply a number by their number.
        counted = jnp.asarray(count, jnp.int32)
        count = lax.psum(reduction.kept(counted, is_idle(idle, replicas)) if idle else counted, AXIS)
    else:
        count *= replicas
    return reduction.finish(total, count, jnp.result_type(value))


def is_idle(idle: tuple[int, ...], replicas: int) -> Any:
    """True if the replica whose program this is belongs to `idle`, a boolean scalar."""
    # A table, because `idle` is known while the program is traced and the replica's number only when it runs.
    return jnp.asarray(np.isin(np.arange(replicas), idle))[lax.axis_index(AXIS)]


def guarded(total: Numeric, op: ReduceOp, idle: tuple[int, ...], replicas: int) -> Any:
    """`total`, a result of a reduction with `op`, whose cotangents are reduced as the values were."""
    return guard_p.bind(total, op=op, idle=idle, replicas=replicas)


guard_p = identity(
    "jd_idle_guard", lambda value, *, op, idle, replicas: reduction_of(op).kept(value, is_idle(idle, replicas))
)
"""The identity; backwards it keeps what idle replicas know nothing of out of the sum of the cotangents."""
