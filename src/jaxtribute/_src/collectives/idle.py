"""Replicas without data: what they give to a reduction, and what comes back to it in the gradient."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.jaxprs.making import identity
from jaxtribute._src.values.enums import ReduceOp
from jaxtribute._src.values.mesh import AXIS


def kept(value: Any, op: ReduceOp, is_idle: Any) -> Any:
    """A replica's contribution to a reduction: an idle one gives nothing to a mean, and to a sum zero in place of NaN.

    Args:
      value: this replica's array.
      op: the reduction.
      is_idle: whether the replica is idle, a boolean scalar.
    """
    drop = is_idle
    if op is ReduceOp.SUM:
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return value
        drop = is_idle & jnp.isnan(value)
    return jnp.where(drop, jnp.zeros_like(value), value)


def is_idle(idle: tuple[int, ...], replicas: int) -> Any:
    """True if the replica whose program this is belongs to `idle`, a boolean scalar."""
    return jnp.asarray(np.isin(np.arange(replicas), idle))[lax.axis_index(AXIS)]


def guarded(total: Any, op: ReduceOp, idle: tuple[int, ...], replicas: int) -> Any:
    """`total`, a result of a reduction with `op`, whose cotangents are reduced as the values were."""
    return guard_p.bind(total, op=op, idle=idle, replicas=replicas)


def _transpose(cotangent: Any, *, op: ReduceOp, idle: tuple[int, ...], replicas: int) -> Any:
    return kept(cotangent, op, is_idle(idle, replicas))


guard_p = identity("jd_idle_guard", _transpose)
"""The identity; backwards it keeps what idle replicas know nothing of out of the sum of the cotangents."""
