"""Losses that come out right over replicas: `jd.nn`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.callers import caller, warn
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.types import ArrayLike
from jaxtribute._src.core.values.operators import operand
from jaxtribute.errors import ArgumentError, ContextError


def compute_average_loss(
    per_example_loss: ArrayLike,
    sample_weight: ArrayLike | None = None,
    global_batch_size: int | jax.Array | None = None,
) -> jax.Array:
    """Returns this replica's part of the mean loss over the global batch.

    The sum of the results over the replicas is the mean over the whole batch, and so are their summed gradients.

    Args:
      per_example_loss: an array of shape `(examples, ...)` of a floating dtype, this replica's examples.
      sample_weight: weights that broadcast against it from the left: a scalar, shape `(examples,)`, `(examples, 1)`
        or the same shape.
      global_batch_size: the number of examples on all replicas, a number or a scalar array; by default this replica's
        times the number of replicas, which is wrong for a last partial batch whose replicas differ. For such a batch
        ask the replicas: `jd.get_replica_context().all_reduce("SUM", x.shape[0])`.

    Returns:
      A scalar: the weighted sum of the losses, over all their axes, divided by `global_batch_size`; 0 if that is 0.

    Raises:
      ArgumentError: `per_example_loss` is a scalar or not floating, weights that do not broadcast, or a
        `global_batch_size` that is no count.
      ContextError: called in cross-replica context without `global_batch_size`.

    Examples:
      >>> jd.nn.compute_average_loss(jnp.array([1.0, 3.0]), global_batch_size=8)  # one of four replicas
      Array(0.5, dtype=float32)

    Source: `tf.nn.compute_average_loss`.
    """
    loss = jnp.asarray(operand(per_example_loss))
    if loss.ndim == 0:
        raise ArgumentError(
            f"per_example_loss is the scalar {loss}. HINT: pass one loss an example, before any mean or sum."
        )
    if not jnp.issubdtype(loss.dtype, jnp.inexact):
        raise ArgumentError(
            f"per_example_loss has dtype {loss.dtype}. HINT: pass floating losses, loss.astype('float32')."
        )
    at_least_one = _at_least_one
    if global_batch_size is None:
        global_batch_size, at_least_one = loss.shape[0] * _replicas("compute_average_loss"), _default_count
    given = operand(global_batch_size)
    count = jnp.asarray(given)
    whole = jnp.issubdtype(count.dtype, jnp.integer) or jnp.issubdtype(count.dtype, jnp.floating)
    # What is traced, such as a sum over the replicas, cannot be looked at.
    if whole and not isinstance(given, Tracer) and count.ndim == 0:
        whole = float(given) >= 0 and float(given).is_integer()
        _look_at(loss.shape[0], float(given))
    if count.ndim or not whole:
        raise ArgumentError(
            f"global_batch_size is {global_batch_size!r}. HINT: pass the number of examples, an integer of at least 0."
        )
    if sample_weight is not None:
        weight = jnp.asarray(operand(sample_weight), loss.dtype)
        if weight.ndim == loss.ndim + 1 and weight.shape[-1] == 1:
            # As TensorFlow's losses take weights: a last axis of length 1 stands for none.
            weight = weight[..., 0]
        fits = weight.ndim <= loss.ndim
        weight = weight.reshape(weight.shape + (1,) * (loss.ndim - weight.ndim)) if fits else weight
        if not fits or any(have not in (1, size) for have, size in zip(weight.shape, loss.shape, strict=True)):
            raise ArgumentError(
                f"sample_weight of shape {weight.shape} does not fit losses of shape {loss.shape}. "
                "HINT: give one weight an example, or one an element."
            )
        loss = loss * weight
    # Divided by 1 in place of 0, and dropped afterwards: of a division by 0 `where` drops the value, but the
    # gradient would be NaN.
    mean = loss.sum() / at_least_one(count).astype(loss.dtype)
    return jnp.where(count == 0, jnp.zeros_like(mean), mean)


def _at_least_one(count: jax.Array) -> jax.Array:
    return jnp.maximum(count, jnp.ones_like(count))


def _default_count(count: jax.Array) -> jax.Array:
    """The divisor if no number of examples is given: a warning of uneven batches knows it by this name."""
    return _at_least_one(count)


def _look_at(examples: int, count: float) -> None:
    """Warns if replicas that got the whole batch each take its examples for a part."""
    replica = contexts.current().replica
    if not examples or replica is None or examples not in replica.whole:
        return
    times = examples * replica.num_replicas_in_sync
    # The largest part of a batch that is distributed is the mean part, rounded up.
    if times >= count + replica.num_replicas_in_sync:
        warn(
            f"{caller()}: each replica got a batch of {examples} whole, so over all replicas its examples count "
            f"{times}, and the loss is divided by {count:g}. HINT: distribute the batch, "
            f"strategy.experimental_distribute_dataset, or give global_batch_size={times}.",
            RuntimeWarning,
        )


def scale_regularization_loss(regularization_loss: ArrayLike) -> jax.Array:
    """Returns this replica's part of a regularization loss, which every replica computes in full.

    Args:
      regularization_loss: an array of any shape, summed up.

    Returns:
      A scalar: the sum divided by the number of replicas.

    Raises:
      ContextError: called in cross-replica context, where no replica's part is meant.

    Examples:
      >>> strategy = jd.MirroredStrategy(2)
      >>> losses = strategy.run(lambda: jd.nn.scale_regularization_loss(jnp.float32(4)))
      >>> strategy.reduce("SUM", losses, axis=None)  # once, however many replicas there are
      Array(4., dtype=float32)

    Source: `tf.nn.scale_regularization_loss`.
    """
    loss = jnp.asarray(operand(regularization_loss))
    return loss.sum() / jnp.asarray(_replicas("scale_regularization_loss"), loss.dtype)


def _replicas(name: str) -> int:
    context = contexts.current()
    if context.replica is None:
        raise ContextError(
            f"{name} was called in cross-replica context of {context.strategy!r}. "
            "HINT: call it in the function passed to strategy.run."
        )
    return context.strategy.num_replicas_in_sync
