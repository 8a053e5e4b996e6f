"""Losses that travel with the gradients: their sum over the replicas needs no collective of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp

from jaxtribute._src.collectives.manual import all_reduce, divided
from jaxtribute._src.collectives.summation import Summation
from jaxtribute._src.context import Frame
from jaxtribute._src.execution.frames import TracedFrame
from jaxtribute._src.jaxprs.core import current_trace
from jaxtribute._src.values.distributed import PerReplica
from jaxtribute._src.values.enums import ReduceOp

_DTYPES = ("float32", "float64")
"""Shorter ones are summed in float32 where they go alone."""


def offer(loss: Any, frame: Frame) -> None:
    """Remembers the loss of one replica, for the next gradients that are summed to take along."""
    if _is_open(frame) and isinstance(loss, jax.Array) and loss.dtype in _DTYPES:
        frame.losses.append(loss)


def sum_with_losses(grads: Sequence[Any], replicas: int, summation: Summation, frame: Frame) -> list[Any]:
    """The sums of the gradients over the replicas; small ones take the losses of their dtype along."""
    if not _is_open(frame):
        return all_reduce(grads, ReduceOp.SUM, replicas, summation)
    arrays = [jnp.asarray(grad) for grad in grads]
    shared = {array.dtype for array in arrays if 0 < array.size * array.dtype.itemsize < summation.shared_bytes}
    losses, frame.losses = [loss for loss in frame.losses if loss.dtype in shared], []
    strong = [jnp.asarray(loss, loss.dtype) for loss in losses]  # their totals are no numbers that yield to other types
    totals = all_reduce([*arrays, *strong], ReduceOp.SUM, replicas, summation)
    frame.totals.update({id(loss): (loss, total) for loss, total in zip(losses, totals[len(arrays) :], strict=True)})
    return totals[: len(arrays)]


def known_total(value: Any, op: ReduceOp, frame: Frame) -> Any:
    """The sum or mean over the replicas of what `strategy.run` returned, if the gradients took it along, else None."""
    if not isinstance(value, PerReplica) or not isinstance(frame, TracedFrame):
        return None
    array, total = frame.totals.get(id(value.data), (None, None))
    if array is not value.data:
        return None
    return total if op is ReduceOp.SUM else divided(total, value.mesh.size)


def _is_open(frame: Frame) -> TypeGuard[TracedFrame]:
    """True if this is one replica's program itself; its values cannot leave a loop, a branch or another inner trace."""
    return isinstance(frame, TracedFrame) and frame.local and current_trace() is frame.trace
