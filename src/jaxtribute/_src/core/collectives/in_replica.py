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
from jaxtribute._src.core.values.enums import ReduceOp
from jaxtribute._src.core.values.mesh import AXIS
from jaxtribute._src.core.values.numbers import summed, widened


def elements_along(shape: Sequence[int], axes: Sequence[int]) -> int:
    """Number of elements of an array that a reduction along `axes` makes one of."""
    return math.prod(shape[axis] for axis in axes)


def summable(value: Numeric, op: ReduceOp = ReduceOp.SUM) -> Any:
    """`value` as an array that can be added up.

    Booleans count as int32. For a mean integers become JAX's default float and half precision float32, as in
    `jnp.mean`: their sum may not fit where their mean does.
    """
    array = jnp.asarray(value)
    if op is ReduceOp.MEAN and not jnp.issubdtype(array.dtype, jnp.inexact):
        return array.astype(jnp.result_type(float))
    if op is ReduceOp.MEAN:
        return widened(array)
    # The sum of booleans would be a boolean, where it is to count them.
    return array.astype(jnp.int32) if array.dtype == jnp.bool_ else array


def divided(total: Numeric, count: Numeric, given: Any = None) -> Any:
    """`total / count`.

    Args:
      total: a sum.
      count: of how many.
      given: the dtype of what was summed up, by default that of the sum: the result has it if it is inexact, and
        otherwise JAX's default float.
    """
    dtype = total.dtype if jnp.issubdtype(total.dtype, jnp.inexact) else jnp.result_type(float)
    # The count in the same dtype, so that strict promotion of dtypes has nothing to refuse.
    mean = total.astype(dtype) / jnp.asarray(count, dtype)
    return mean.astype(given) if given is not None and jnp.issubdtype(given, jnp.inexact) else mean


def contributions(values: Sequence[Any], op: ReduceOp, replicas: int, idle: tuple[int, ...]) -> tuple[list[Any], int]:
    """This replica's contribution to a reduction, and the number of replicas that a mean counts.

    Args:
      values: this replica's arrays.
      op: the reduction.
      replicas: how many replicas there are.
      idle: ids of the replicas that got no data. A mean leaves them out; to a sum they give zero in place of
        NaN, which is what means over no examples come to.
    """
    arrays = [summable(value, op) for value in values]
    if not idle:
        return arrays, replicas
    mine = is_idle(idle, replicas)
    return [kept(array, op, mine) for array in arrays], replicas - len(idle)


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
    arrays, count = contributions(values, op, replicas, idle)
    totals = (summation or AutoSum())(arrays, replicas)
    if idle:
        # Backwards too: what the cotangents of idle replicas say comes from padding, and must not get into the sum.
        totals = [guarded(total, op, idle, replicas) for total in totals]
    if op is ReduceOp.SUM:
        return totals
    return [divided(total, count, jnp.result_type(value)) for total, value in zip(totals, values, strict=True)]


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
    return lax.psum(kept, AXIS)


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
    array, given = summable(value, op), jnp.result_type(value)
    elements = 1 if axes is None else elements_along(array.shape, axes)
    if axes is not None:
        # Short floats stay wide until the replicas' sums are added up: rounded twice, the total would be another one.
        array = summed(widened(array), axes)
    # A mean along axes divides by elements and not by replicas: a sum until the end.
    total = all_reduce([array], ReduceOp.SUM if axes is not None else op, replicas, idle=idle)[0]
    if op is ReduceOp.SUM:
        return total.astype(given) if jnp.issubdtype(given, jnp.inexact) else total
    if axes is None:
        return total.astype(given) if jnp.issubdtype(given, jnp.inexact) else total
    if not uneven:
        return divided(total, elements * replicas, given)
    # The true number of elements of all replicas, as an array: psum would multiply a number by their number.
    counted = jnp.asarray(elements, jnp.int32)
    if idle:
        counted = kept(counted, op, is_idle(idle, replicas))
    return divided(total, lax.psum(counted, AXIS), given)


def kept(value: Numeric, op: ReduceOp, is_idle: Any) -> Any:
    """A replica's contribution to a reduction: an idle one gives nothing to a mean, and to a sum zero in place of NaN.

    Args:
      value: this replica's array.
      op: the reduction.
      is_idle: whether the replica is idle, a boolean scalar.
    """
    drop = is_idle
    if op is ReduceOp.SUM:
        # Integers have no NaN. What an idle replica counts is meant.
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return value
        drop = is_idle & jnp.isnan(value)
    return jnp.where(drop, jnp.zeros_like(value), value)


def is_idle(idle: tuple[int, ...], replicas: int) -> Any:
    """True if the replica whose program this is belongs to `idle`, a boolean scalar."""
    # A table, because `idle` is known while the program is traced and the replica's number only when it runs.
    return jnp.asarray(np.isin(np.arange(replicas), idle))[lax.axis_index(AXIS)]


def guarded(total: Numeric, op: ReduceOp, idle: tuple[int, ...], replicas: int) -> Any:
    """`total`, a result of a reduction with `op`, whose cotangents are reduced as the values were."""
    return guard_p.bind(total, op=op, idle=idle, replicas=replicas)


def _transpose(cotangent: Numeric, *, op: ReduceOp, idle: tuple[int, ...], replicas: int) -> Any:
    return kept(cotangent, op, is_idle(idle, replicas))


guard_p = identity("jd_idle_guard", _transpose)
"""The identity; backwards it keeps what idle replicas know nothing of out of the sum of the cotangents."""
