"""Losses that travel with the gradients: their sum over the replicas needs no collective of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import jax.numpy as jnp

from jaxtribute.collectives.manual import divided
from jaxtribute.collectives.packing import PIECE_BYTES
from jaxtribute.context import Frame
from jaxtribute.execution.frames import TracedFrame, current_trace
from jaxtribute.values.distributed import PerReplica
from jaxtribute.values.enums import ReduceOp


def offer(loss: Any, frame: Frame) -> None:
    """Remembers the loss of one replica, for the next gradients that are summed to take along."""
    if _is_open(frame) and jnp.ndim(loss) == 0:
        frame.losses.append(loss)


def sum_with_losses(grads: Sequence[Any], frame: Frame, total: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """`total` of the gradients, and of the losses that were offered and fit into a pack of theirs."""
    if not _is_open(frame):
        return total(list(grads))
    packed = {grad.dtype for grad in grads if grad.size * grad.dtype.itemsize < PIECE_BYTES}
    losses, frame.losses = [loss for loss in frame.losses if loss.dtype in packed], []
    sums = total([*grads, *losses])
    frame.totals.update({id(loss): (loss, its) for loss, its in zip(losses, sums[len(grads) :], strict=True)})
    return sums[: len(grads)]


def known_total(value: Any, op: ReduceOp, frame: Frame) -> Any:
    """The sum or mean over the replicas of what `strategy.run` returned, if the gradients took it along, else None."""
    if not isinstance(value, PerReplica) or not isinstance(frame, TracedFrame):
        return None
    array, total = frame.totals.get(id(value.data), (None, None))
    if array is not value.data:
        return None
    return total if op is ReduceOp.SUM else divided(total, value.mesh.size)


def _is_open(frame: Frame) -> TypeGuard[TracedFrame]:
    """Whether the code is one replica's program itself, not a loop or a branch in it, which its values cannot leave."""
    return isinstance(frame, TracedFrame) and frame.local and current_trace() is frame.trace
