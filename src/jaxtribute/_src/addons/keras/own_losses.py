"""Keras's loss objects where a replica's function calls them itself, outside of what `fit` computes.

Optimizers add gradients up over the replicas, so each replica's mean must count for its part only. In a step in
TensorFlow's form the gradient is weighted by the replica's part of the rows, as that of `compute_loss` is. In other
replica functions Keras on TensorFlow divides such a loss by the number of replicas, and so it is here for programs of
TensorFlow's; in all others it is the mean over the replica's rows, as Keras has it on JAX.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxtribute._src.addons.keras.custom_loops import own_replica
from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute._src.addons.keras.share import current, whole_batch_additions, whole_batch_losses
from jaxtribute._src.addons.keras.stateful import is_step, weighted_mean
from jaxtribute.extending import Context
from jaxtribute.nn import compute_average_loss
from jaxtribute.typing import Array, DType, Nest

_OF_TENSORFLOW = "jaxtribute.compat.tf"
"""The module that programs of TensorFlow's import in place of `tensorflow`."""


def loss_of_replica(
    original: Callable[..., Any],
    values: Nest,
    sample_weight: Array | None = None,
    mask: Array | None = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: DType = None,
) -> Any:
    """Keras's `reduce_weighted_values`, in a step of `fit` or in a replica function of one's own."""
    given = {"sample_weight": sample_weight, "mask": mask, "dtype": dtype}
    loss = whole_batch_losses(original, values, **given, reduction=reduction)
    # As in Keras, what is one number before it is reduced is left as it is.
    if reduction in (None, "none", "sum") or jnp.ndim(values) == 0:
        return loss
    by_rows = reduction != "mean_with_sample_weight" and mask is None
    if own_replica() is not None and is_step():
        return weighted_mean(loss, by_rows=by_rows)
    divisor = _divisor()
    if divisor is None:
        return loss
    if not by_rows:
        return loss / divisor
    # The same quotient, of which it is known that uneven batches make it wrong.
    each = original(values, **given, reduction="none")
    return compute_average_loss(each) / math.prod(each.shape[1:])


def addition_of_replica(original: Callable[..., Any], model: KerasModel, loss: Array) -> Any:
    """A trainer's `_aggregate_additional_loss`, in a step of `fit` or in a replica function of one's own."""
    loss, divisor = whole_batch_additions(original, model, loss), _divisor()
    return loss if divisor is None else loss / divisor


def undivided(original: Callable[..., Any], loss: Array) -> Any:
    """Keras's `unscale_loss_for_distribution`: a loss as a metric is to show it."""
    loss, divisor = original(loss), _divisor()
    return loss if divisor is None else loss * divisor


def _divisor() -> int | None:
    """The number of replicas, if losses are divided by it in the replica function that runs: also if it is one."""
    now = Context.current()
    if now.replica is None or now.strategy.is_default or current() is not None or is_step():
        return None
    return now.replica.num_replicas_in_sync if _OF_TENSORFLOW in sys.modules else None
