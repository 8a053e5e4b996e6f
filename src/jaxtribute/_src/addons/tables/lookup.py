"""`embedding_lookup`: rows of tables, of variables and of arrays, combined if asked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, overload

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Variable
from jaxtribute.errors import ArgumentError, ShapeError
from jaxtribute.extending import operand, row_ids
from jaxtribute.typing import ArrayLike, Leaf, Numeric

Combiner = Literal["sum", "mean", "sqrtn"]


@overload
def embedding_lookup(
    params: Leaf | Sequence[Leaf], ids: Numeric, weights: ArrayLike | None = None, combiner: Combiner | None = None
) -> jax.Array: ...


@overload
def embedding_lookup(
    params: Mapping[str, Leaf | Sequence[Leaf]],
    ids: Mapping[str, Numeric],
    weights: Mapping[str, ArrayLike | None] | None = None,
    combiner: Combiner | Mapping[str, Combiner | None] | None = None,
) -> dict[str, jax.Array]: ...


def embedding_lookup(params: Any, ids: Any, weights: Any = None, combiner: Any = None) -> Any:
    """Returns rows of a table of embeddings, or combinations of some rows each.

    Of a `jd.nn.ShardedTable`, and of a variable on parameter servers, only these rows travel, each once, in a compiled
    step as in any other code; and its gradient (`jd.grad`) is a `jd.IndexedSlices` of these rows, which `jd.Optimizer`
    applies to them alone.

    Args:
      params: the table, a variable or an array of shape `(rows, ...)`; or a list of its parts, whose rows follow each
        other. Parts on parameter servers travel as a whole. Or a dict of these by feature, with `ids` in another dict:
        in a compiled step all tables of one width are looked up in one exchange.
      ids: the rows, an integer array of any shape. In a compiled step over parameter servers they must not depend on
        variables. With a `combiner`, -1 is no row: lists of several lengths are filled up with it.
      weights: a floating array that broadcasts against `ids`: the rows are multiplied by it before they are combined.
      combiner: the way in which the rows along the last axis of `ids` become one: their weighted `"sum"`, the sum
        divided by that of the weights (`"mean"`) or by the root of the sum of their squares (`"sqrtn"`). Of no rows,
        and where that is 0, they are zeros. None keeps the rows. Of a dict of tables, `weights` are a dict, in which
        features may be left out, and a combiner is that of all, or a dict likewise.

    Returns:
      An array of shape `(*ids.shape, ...)`, with a combiner `(*ids.shape[:-1], ...)`. Ids that name no row, as they are
      negative or too large, are an error if they are known; in a compiled function they give rows of NaN (integers: of
      their smallest), whatever the strategy. Of a dict of tables, a dict of such arrays.

    Raises:
      ArgumentError: ids that are no integers, or known and no rows of the table; of a variable on parameter servers
        they are known in compiled functions too. Or no parts, an unknown combiner, or weights without one; or ids,
        weights or combiners of features that are not in the dict of tables.
      ShapeError: parts whose rows differ in shape, or ids that are lists of several lengths.
      TraceError: inside `jax.jit`, `lax.scan` or the like, of a variable on parameter servers.

    Examples:
      >>> table = jd.Variable([[0.0, 1.0], [2.0, 3.0]])
      >>> jd.nn.embedding_lookup(table, jnp.array([1, 1]))
      Array([[2., 3.],
             [2., 3.]], dtype=float32)

    Source: `tf.nn.embedding_lookup`, `tf.nn.embedding_lookup_sparse`.
    """
    if isinstance(params, Mapping):
        return _of_features(params, ids, weights, combiner)
    lookup = _Lookup(ids, weights, combiner)
    return lookup.combined(_rows(params, lookup.ids, lookup.present))


def _of_features(params: Mapping[str, Any], ids: Any, weights: Any, combiner: Any) -> dict[str, jax.Array]:
    """The results of several lookups; those in tables by rows are made together."""
    combiners = combiner if isinstance(combiner, Mapping) else dict.fromkeys(params, combiner)
    weights = {} if weights is None else weights
    for what, given in (("ids", ids), ("weights", weights), ("combiner", combiners)):
        strangers = set(given) ^ set(params) if what == "ids" else set(given) - set(params)
        if strangers:
            raise ArgumentError(
                f"{what} and the tables differ in the features {sorted(strangers)}. HINT: give each feature's table "
                "and ids the same name."
            )
    lookups = {name: _Lookup(ids[name], weights.get(name), combiners.get(name)) for name in params}
    tables = [name for name, one in params.items() if isinstance(one, Variable) and one.policy.by_rows]
    rows = dict[str, Any]()
    if tables:
        own = [lookups[name] for name in tables]
        read: Any = params[tables[0]]
        found = read.read_together(
            [params[name] for name in tables], [one.ids for one in own], [one.present for one in own]
        )
        rows = dict(zip(tables, found, strict=True))
    for name, one in lookups.items():
        rows[name] = one.combined(rows[name] if name in rows else _rows(params[name], one.ids, one.present))
    return {name: rows[name] for name in params}


class _Lookup:
    """The ids of a lookup, and the way in which its rows are combined.

    Args:
      ids: the ids.
      weights: their weights.
      combiner: how the rows along the last axis become one; None if they do not.
    """

    def __init__(self, ids: Any, weights: Any, combiner: Any) -> None:
        if combiner is not None and combiner not in get_args(Combiner):
            raise ArgumentError(f"combiner is {combiner!r}. HINT: pass 'sum', 'mean', 'sqrtn' or None.")
        if combiner is None and weights is not None:
            raise ArgumentError("weights without a combiner. HINT: pass combiner='sum', or multiply the rows.")
        self._weights, self._combiner = weights, combiner
        ids = operand(ids)
        try:
            # Known ids stay NumPy's, and can be checked: as arrays of JAX they may be traced.
            lists = ids.tolist() if getattr(ids, "dtype", None) == np.dtype(object) else ids
            self.ids: Any = ids if isinstance(ids, jax.Array) else np.asarray(lists)
        except ValueError:
            lengths = [np.size(one) for one in ids]
            raise ShapeError(
                f"ids are lists of several lengths, {str(lengths)[:60]}. HINT: fill the shorter ones up with -1, which "
                "is no row where there is a combiner, as keras.utils.pad_sequences(ids, padding='post', value=-1) does."
            ) from None
        self.present: Any = None
        """True for each id that names a row; None if all should."""
        if not jnp.issubdtype(self.ids.dtype, jnp.integer):
            raise ArgumentError(
                f"ids have dtype {self.ids.dtype}. HINT: pass integers, ids.astype('int32'); strings get numbers by a "
                "vocabulary, such as jaxtribute.integrations.keras.StringLookup."
            )
        if combiner is None:
            return
        if not self.ids.ndim:
            raise ArgumentError(
                f"ids are the scalar {ids}, and combiner={combiner!r} combines their last axis. HINT: ids[None]."
            )
        signed = jnp.issubdtype(self.ids.dtype, jnp.signedinteger)
        self.present = self.ids != np.asarray(-1, self.ids.dtype) if signed else np.full(self.ids.shape, True)

    def combined(self, rows: jax.Array) -> jax.Array:
        """The result of the rows of all ids, zeros where none is present."""
        if self._combiner is None:
            return rows
        ids, present = self.ids, self.present
        each = jnp.ones(ids.shape, rows.dtype)
        try:
            if self._weights is not None:
                each = jnp.broadcast_to(jnp.asarray(operand(self._weights), rows.dtype), ids.shape)
        except ValueError:
            given = operand(self._weights)
            which = f"of shape {given.shape}" if hasattr(given, "shape") else str(given)[:60]
            raise ShapeError(
                f"weights {which} do not fit ids of shape {ids.shape}. HINT: give a weight for each id."
            ) from None
        each = jnp.where(present, each, jnp.zeros_like(each))
        row = rows.shape[ids.ndim :]
        # Not -1 for the size of a row: a replica without examples has no ids.
        flat = rows.reshape(*ids.shape, math.prod(row))
        total = jnp.einsum("...n,...nd->...d", each, flat).reshape(*ids.shape[:-1], *row)
        if self._combiner == "sum":
            return total
        by = each.sum(-1) if self._combiner == "mean" else jnp.square(each).sum(-1)
        # The root is not taken of 0, nor divided by it, where gradients would not be finite.
        by = by.reshape(*by.shape, *[1] * len(row))
        nothing, by = by == 0, jnp.where(by == 0, jnp.ones_like(by), by)
        found = total / (by if self._combiner == "mean" else jnp.sqrt(by))
        return jnp.where(nothing, jnp.zeros_like(found), found)


def _rows(params: Any, ids: Any, present: Any) -> jax.Array:
    """Rows of a table, zeros where they are not `present`."""
    if isinstance(params, list | tuple) and len(params) == 1:
        params = params[0]
    if isinstance(params, Variable) and (params.policy.by_rows or params.policy.remote) and present is not None:
        # Of a table nothing is sent for them, and an optimizer updates no row.
        return params.sparse_read(ids, mask=present)
    if present is not None:
        ids = (np if isinstance(ids, np.ndarray) else jnp).where(present, ids, np.zeros((), ids.dtype))
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
