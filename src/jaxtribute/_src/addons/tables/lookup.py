"""`embedding_lookup`: rows of tables, of variables and of arrays, combined if asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Variable
from jaxtribute.errors import ArgumentError, ShapeError
from jaxtribute.extending import operand, row_ids
from jaxtribute.typing import ArrayLike, Leaf, Numeric

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
        divided by that of the weights (`"mean"`) or by the root of the sum of their squares (`"sqrtn"`). Of no rows,
        and where that is 0, they are zeros. None keeps the rows.

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
    row = rows.shape[ids.ndim :]
    # Not -1 for the size of a row: a replica without examples has no ids.
    flat = rows.reshape(*ids.shape, math.prod(row))
    total = jnp.einsum("...n,...nd->...d", each, flat).reshape(*ids.shape[:-1], *row)
    if combiner == "sum":
        return total
    by = each.sum(-1) if combiner == "mean" else jnp.square(each).sum(-1)
    # The root is not taken of 0, nor divided by it, where gradients would not be finite.
    by = by.reshape(*by.shape, *[1] * len(row))
    nothing, by = by == 0, jnp.where(by == 0, jnp.ones_like(by), by)
    found = total / (by if combiner == "mean" else jnp.sqrt(by))
    return jnp.where(nothing, jnp.zeros_like(found), found)


def _rows(params: Any, ids: Numeric, present: Any) -> jax.Array:
    """Rows of a table, zeros where they are not `present`."""
    ids = operand(ids)
    # Known ids stay NumPy's, and can be checked: as arrays of JAX they may be traced.
    ids = ids if isinstance(ids, jax.Array) else np.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ArgumentError(
            f"ids have dtype {ids.dtype}. HINT: pass integers, ids.astype('int32'); strings get numbers by a "
            "vocabulary, such as jaxtribute.integrations.keras.StringLookup."
        )
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
