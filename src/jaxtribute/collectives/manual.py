"""Collectives inside one replica's program, where the replicas' mesh axis is manual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute.collectives.summation import AutoSum, Summation
from jaxtribute.values.enums import ReduceOp
from jaxtribute.values.mesh import AXIS


def summable(value: Any) -> Any:
    """`value` as an array that can be added up: booleans count as int32."""
    array = jnp.asarray(value)
    return array.astype(jnp.int32) if array.dtype == jnp.bool_ else array


def divided(total: Any, count: Any) -> Any:
    """`total / count` in the dtype of `total` if that is inexact, else in JAX's default float."""
    dtype = total.dtype if jnp.issubdtype(total.dtype, jnp.inexact) else jnp.result_type(float)
    return total.astype(dtype) / jnp.asarray(count, dtype)


def contributions(values: Sequence[Any], op: ReduceOp, replicas: int, idle: tuple[int, ...]) -> tuple[list[Any], int]:
    """What this replica adds to a reduction, and how many replicas a mean counts.

    Args:
      values: this replica's arrays.
      op: the reduction.
      replicas: how many replicas there are.
      idle: ids of the replicas that got no data. A mean leaves them out; to a sum they give zero in place of
        NaN, which is what means over no examples come to.
    """
    arrays = [summable(value) for value in values]
    if not idle:
        return arrays, replicas
    table = np.isin(np.arange(replicas), idle)
    is_idle = jnp.asarray(table)[lax.axis_index(AXIS)]
    kept: list[Any] = []
    for array in arrays:
        drop = is_idle
        if op is ReduceOp.SUM:
            drop = is_idle & jnp.isnan(array) if jnp.issubdtype(array.dtype, jnp.inexact) else None
        kept.append(array if drop is None else jnp.where(drop, jnp.zeros_like(array), array))
    return kept, replicas - len(idle)


def all_reduce(
    values: Sequence[Any],
    op: ReduceOp,
    replicas: int,
    summation: Summation | None = None,
    idle: tuple[int, ...] = (),
) -> list[Any]:
    """Reduces each array over the replicas by `summation`; every replica gets the result. `idle` as above.

    Differentiable: the gradient is the all-reduce of the cotangents with the same operation.
    """
    arrays, count = contributions(values, op, replicas, idle)
    totals = (summation or AutoSum())(arrays, replicas)
    return totals if op is ReduceOp.SUM else [divided(total, count) for total in totals]


def all_gather(value: Any, axis: int) -> Any:
    """Concatenates the replicas' arrays along `axis`; every replica gets the result."""
    return lax.all_gather(value, AXIS, axis=axis, tiled=True)


def rows(value: Any) -> Any:
    """Stacks the replicas' arrays along a new axis 0; every replica gets the result."""
    return lax.all_gather(value, AXIS, axis=0, tiled=False)


def from_replica(value: Any, replica: int) -> Any:
    """The array of one replica, on every replica."""
    array = jnp.asarray(value)
    kept = jnp.where(lax.axis_index(AXIS) == replica, array, jnp.zeros_like(array))
    if array.dtype == jnp.bool_:
        return lax.psum(kept.astype(jnp.int8), AXIS).astype(jnp.bool_)
    return lax.psum(kept, AXIS)


def reduce_local(value: Any, op: ReduceOp, axes: tuple[int, ...] | None, replicas: int) -> jax.Array:
    """Reduces this replica's array along `axes`, then over the replicas."""
    array = summable(value)
    count = replicas
    if axes is not None:
        count *= math.prod(array.shape[axis] for axis in axes)
        array = array.sum(axes, dtype=array.dtype)
    total = lax.psum(array, AXIS)
    return total if op is ReduceOp.SUM else divided(total, count)
