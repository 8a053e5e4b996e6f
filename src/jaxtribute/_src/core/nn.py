"""Losses that come out right over replicas: `jd.nn`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.types import ArrayLike, Leaf, Numeric
from jaxtribute._src.core.values.numbers import row_ids
from jaxtribute._src.core.values.operators import operand
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentError, ContextError, ShapeError


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
    if global_batch_size is None:
        global_batch_size = loss.shape[0] * _replicas("compute_average_loss")
    count = jnp.asarray(operand(global_batch_size))
    whole = jnp.issubdtype(count.dtype, jnp.integer) or jnp.issubdtype(count.dtype, jnp.floating)
    # What is traced, such as a sum over the replicas, cannot be looked at.
    if whole and not isinstance(count, Tracer) and count.ndim == 0:
        whole = bool(count >= 0) and float(count).is_integer()
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
    mean = loss.sum() / jnp.maximum(count, jnp.ones_like(count)).astype(loss.dtype)
    return jnp.where(count == 0, jnp.zeros_like(mean), mean)


Combiner = Literal["sum", "mean", "sqrtn"]


def embedding_lookup(
    params: Leaf | Sequence[Leaf], ids: Numeric, weights: ArrayLike | None = None, combiner: Combiner | None = None
) -> jax.Array:
    """Returns rows of a table of embeddings, or combinations of some rows each.

    Of a `jd.nn.ShardedTable`, and of a variable on parameter servers, only these rows travel, each once, in a compiled
    step as in any other code; and its gradient (`jd.grad`) is a `jd.IndexedSlices` of these rows, which `jd.Optimizer`
    applies to them alone.

    Args:
      params: the table, a variable or an array of shape `(rows, ...)`; or a list of its parts, whose rows follow each
        other. Parts on parameter servers travel as a whole.
      ids: the rows, an integer array of any shape. In a compiled step over parameter servers they must not depend on
        variables. With a `combiner`, -1 is no row: lists of several lengths are filled up with it.
      weights: a floating array that broadcasts against `ids`: the rows are multiplied by it before they are combined.
      combiner: the way in which the rows along the last axis of `ids` become one: their weighted `"sum"`, the sum
        divided by that of the weights (`"mean"`) or by the root of the sum of their squares (`"sqrtn"`). Of no rows
        they are zeros. None keeps the rows.

    Returns:
      An array of shape `(*ids.shape, ...)`, with a combiner `(*ids.shape[:-1], ...)`. Ids that name no row, as they are
      negative or too large, are an error if they are known; in a compiled function they give rows of NaN (integers: of
      their smallest), whatever the strategy.

    Raises:
      ArgumentError: ids that are no integers, or known and no rows of the table; of a variable on parameter servers
        they are known in compiled functions too. Or no parts, an unknown combiner, or weights without one.
      ShapeError: parts whose rows differ in shape.
      TraceError: inside `jax.jit`, `lax.scan` or the like, of a variable on parameter servers.

    Examples:
      >>> table = jd.Variable([[0.0, 1.0], [2.0, 3.0]])
      >>> jd.nn.embedding_lookup(table, jnp.array([1, 1]))
      Array([[2., 3.],
             [2., 3.]], dtype=float32)

    Source: `tf.nn.embedding_lookup`, `tf.nn.embedding_lookup_sparse`.
    """
    if combiner is not None:
        return _combined(params, ids, weights, combiner)
    if weights is not None:
        raise ArgumentError("weights without a combiner. HINT: pass combiner='sum', or multiply the rows.")
    return _rows(params, ids, None)


def _combined(params: Any, ids: Numeric, weights: ArrayLike | None, combiner: Combiner) -> jax.Array:
    if combiner not in get_args(Combiner):
        raise ArgumentError(f"combiner is {combiner!r}. HINT: pass 'sum', 'mean', 'sqrtn' or None.")
    ids = operand(ids)
    ids = ids if isinstance(ids, jax.Array) else np.asarray(ids)
    if not ids.ndim:
        raise ArgumentError(
            f"ids are the scalar {ids}, and combiner={combiner!r} combines their last axis. HINT: ids[None]."
        )
    present = (
        ids != np.asarray(-1, ids.dtype) if jnp.issubdtype(ids.dtype, jnp.signedinteger) else np.full(ids.shape, True)
    )
    rows = _rows(params, ids, present)
    each = jnp.ones(ids.shape, rows.dtype) if weights is None else jnp.asarray(operand(weights), rows.dtype)
    try:
        each = jnp.broadcast_to(each, ids.shape)
    except ValueError:
        raise ShapeError(
            f"weights of shape {each.shape} do not fit ids of shape {ids.shape}. HINT: give a weight for each id."
        ) from None
    each = jnp.where(present, each, jnp.zeros_like(each))
    total = jnp.einsum("...n,...nd->...d", each, rows.reshape(*ids.shape, -1)).reshape(
        *ids.shape[:-1], *rows.shape[ids.ndim :]
    )
    if combiner == "sum":
        return total
    by = each.sum(-1) if combiner == "mean" else jnp.square(each).sum(-1)
    # Of no rows: divided by 1, and the root is not taken of 0, where its gradient would be infinite.
    by = jnp.where(by == 0, jnp.ones_like(by), by)
    by = by if combiner == "mean" else jnp.sqrt(by)
    return total / by.reshape(*by.shape, *[1] * (total.ndim - by.ndim))


def _rows(params: Any, ids: Numeric, present: Any) -> jax.Array:
    """Rows of a table, zeros where they are not `present`."""
    ids = operand(ids)
    # Known ids stay NumPy's, and can be checked: as arrays of JAX they may be traced.
    ids = ids if isinstance(ids, jax.Array) else np.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ArgumentError(f"ids have dtype {ids.dtype}. HINT: pass integers, ids.astype('int32').")
    if isinstance(params, list | tuple) and len(params) == 1:
        params = params[0]
    if isinstance(params, Variable) and params.policy.by_rows and present is not None:
        # Of a table nothing is sent for them.
        return params.sparse_read(ids, mask=present)
    if present is not None:
        ids = (np if isinstance(present, np.ndarray) else jnp).where(present, ids, np.zeros((), ids.dtype))
        found = _rows(params, ids, None)
        present = present.reshape(*present.shape, *[1] * (found.ndim - present.ndim))
        return jnp.where(present, found, jnp.zeros_like(found))
    if isinstance(params, Variable):
        return params.sparse_read(ids)
    table = _joined(params) if isinstance(params, list | tuple) else jnp.asarray(operand(params))
    return jnp.take(table, row_ids(ids, table.shape[0], "the table"), axis=0)


def _joined(parts: Sequence[Leaf]) -> jax.Array:
    arrays = [jnp.asarray(operand(part)) for part in parts]
    if not arrays:
        raise ArgumentError("embedding_lookup was given an empty list. HINT: pass the table, or the list of its parts.")
    if any(array.ndim == 0 or array.shape[1:] != arrays[0].shape[1:] for array in arrays):
        raise ShapeError(
            f"embedding_lookup was given parts of shapes {[array.shape for array in arrays]}. HINT: the parts of a "
            "table differ in their number of rows alone."
        )
    return jnp.concatenate(arrays)


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
