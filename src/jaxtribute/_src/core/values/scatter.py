"""Writing some rows of a variable: `scatter_add` and its like, and the sparse values that they take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Self, cast

import jax.numpy as jnp
from jax import lax

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.types import Nest, Numeric
from jaxtribute._src.core.values.enums import ReduceOp, VariableAggregation, reduction_of
from jaxtribute._src.core.values.numbers import row_ids
from jaxtribute._src.core.values.operators import operand
from jaxtribute._src.core.values.policies.base import check_arithmetic
from jaxtribute.errors import AggregationError, ArgumentTypeError, ShapeError, VariableError

if TYPE_CHECKING:
    from jaxtribute._src.core.context import Context
    from jaxtribute._src.core.execution.executor import Executor
    from jaxtribute._src.core.execution.replica_context import ReplicaContext
    from jaxtribute._src.core.values.variable import Variable


@dataclass(frozen=True, eq=False)
class IndexedSlices:
    """Some rows of an array: row `indices[i]` is `values[i]`.

    Attributes:
      values: an array of shape `(rows, *rest)`.
      indices: an integer array of shape `(rows,)`; a row may come several times.
      dense_shape: the shape of the whole array, accepted for compatibility.

    Examples:
      >>> w = jd.Variable(jnp.zeros((3, 2)))
      >>> w.scatter_add(jd.IndexedSlices(values=jnp.ones((1, 2)), indices=jnp.array([2]))).numpy()
      array([[0., 0.],
             [0., 0.],
             [1., 1.]], dtype=float32)

    Source: `tf.IndexedSlices`.
    """

    values: Any
    indices: Any
    dense_shape: Any = None


class Scatter(Enum):
    """Treatment of the old rows in a scattered write."""

    ADD = "scatter_add"
    SUB = "scatter_sub"
    MUL = "scatter_mul"
    DIV = "scatter_div"
    MIN = "scatter_min"
    MAX = "scatter_max"
    UPDATE = "scatter_update"

    def apply(self, old: Numeric, indices: Numeric, values: Nest) -> Any:
        """The new array."""
        rows = old.at[indices]
        if self is Scatter.SUB:
            return rows.add(-values)
        if self is Scatter.DIV and jnp.issubdtype(old.dtype, jnp.integer):
            # One after the other, towards zero: the product of a row's divisors might not fit the dtype.
            return lax.fori_loop(
                0,
                len(indices),
                lambda i, new: new.at[indices[i]].set(lax.div(new[indices[i]], values[i])),
                jnp.asarray(old),
            )
        name = {"scatter_div": "divide", "scatter_update": "set", "scatter_mul": "multiply"}.get(self.value)
        return getattr(rows, name or self.value.removeprefix("scatter_"))(values)


class ScatterMethods:
    """Mixin of `Variable`: writes to some of its rows.

    In replica context the rows of all replicas are joined first, as the variable's aggregation says: SUM and MEAN for
    `scatter_add`, `scatter_sub`, `scatter_mul` and `scatter_div`, ONLY_FIRST_REPLICA for all. SUM writes the rows of
    each replica, MEAN those rows divided by the number of replicas. An ON_READ variable is written by each replica for
    itself. Indices that name no row, as they are negative or too large, are an error if they are known; in a
    compiled function they are ignored, whatever the strategy.
    """

    def scatter_add(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Self:
        """Adds `sparse_delta.values` to the rows at its indices. Returns the variable.

        Args:
          sparse_delta: the rows, and which of the variable's they are for.
          use_locking: accepted for compatibility.
          name: accepted for compatibility.

        Raises:
          ArgumentTypeError: no `jd.IndexedSlices`.
          ArgumentError: an index that is known names no row.
          ShapeError: its rows do not fit the variable's, or there are more or fewer than indices.
          AggregationError: the aggregation does not say what the replicas' rows come to.

        Source: `tf.Variable.scatter_add`.
        """
        return self._scatter(sparse_delta, Scatter.ADD)

    def scatter_sub(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Self:
        """Subtracts rows; otherwise as `scatter_add`."""
        return self._scatter(sparse_delta, Scatter.SUB)

    def scatter_mul(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Self:
        """Multiplies rows; otherwise as `scatter_add`."""
        return self._scatter(sparse_delta, Scatter.MUL)

    def scatter_div(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Self:
        """Divides rows; otherwise as `scatter_add`."""
        return self._scatter(sparse_delta, Scatter.DIV)

    def scatter_min(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Self:
        """Keeps the smaller of old and new rows, element by element; otherwise as `scatter_add`."""
        return self._scatter(sparse_delta, Scatter.MIN)

    def scatter_max(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Self:
        """Keeps the larger of old and new rows, element by element; otherwise as `scatter_add`."""
        return self._scatter(sparse_delta, Scatter.MAX)

    def scatter_update(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Self:
        """Replaces rows, each of which must come once; otherwise as `scatter_add`."""
        return self._scatter(sparse_delta, Scatter.UPDATE)

    def _checked_rows(self, delta: IndexedSlices, how: Scatter) -> tuple[Any, Any]:
        """The indices and rows, once they are known to fit."""
        variable = cast("Variable", self)
        if how is not Scatter.UPDATE:
            check_arithmetic(variable, how.value)
        if not isinstance(delta, IndexedSlices):
            raise ArgumentTypeError(
                f"{variable.name} was given {delta!r} of type {type(delta).__name__} for some of its rows. "
                "HINT: pass jd.IndexedSlices(values, indices)."
            )
        indices = jnp.asarray(operand(delta.indices))
        values = jnp.asarray(operand(delta.values), variable.dtype)
        if indices.ndim != 1 or values.shape != (*indices.shape, *variable.shape[1:]):
            raise ShapeError(
                f"{variable.name} has shape {variable.shape}; rows of shape {values.shape} at indices of shape "
                f"{indices.shape} do not fit. HINT: pass n indices and values of shape (n, *{variable.shape[1:]})."
            )
        return row_ids(indices, variable.shape[0] if variable.shape else 0, variable.name), values

    def _scatter(self, delta: IndexedSlices, how: Scatter) -> Self:
        variable = cast("Variable", self)
        contexts.current().strategy.extended.check_variable(variable)
        context = contexts.of(variable.distribute_strategy)
        indices, values = self._checked_rows(delta, how)
        executor, policy = context.executor, variable.policy
        if not policy.shared:
            _scatter_own(variable, indices, values, how, context)
            return self
        replica = context.replica
        if replica is not None and context.strategy.num_replicas_in_sync > 1:
            indices, values = _joined(variable, indices, values, how, replica)
        # Outside replicas the rows may be on devices where the variable's array is not.
        if not executor.local:
            indices, values = policy.admit(indices), policy.admit(values)

        def write(executor: Executor) -> None:
            seen = executor.standpoint
            seen.store(executor, variable, how.apply(seen.whole(executor, variable), indices, values))

        executor.together(write)
        return self


def _scatter_own(variable: Variable, indices: Numeric, values: Nest, how: Scatter, context: Context) -> None:
    """One replica's write to its own value."""
    executor = context.executor
    if context.replica is None or not executor.local:
        raise VariableError(
            f"{variable.name} keeps one value a replica: {how.value} in cross-replica context does not say whose rows "
            "are meant. HINT: call it in strategy.run."
        )

    def write(executor: Executor) -> None:
        # The replica's part is a row of the stored array, of shape `(1, *shape)`: indices count within the value.
        rows = executor.get(variable)
        executor.set(variable, how.apply(rows.reshape(variable.shape), indices, values).reshape(rows.shape))

    executor.together(write)


def _joined(
    variable: Variable, indices: Numeric, values: Nest, how: Scatter, replica: ReplicaContext
) -> tuple[Any, Any]:
    """Combines the replicas' rows, on every replica."""
    aggregation = variable.aggregation
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        executor = contexts.current().executor
        return executor.select(indices, 0), executor.select(values, 0)
    if aggregation is VariableAggregation.NONE or how in (Scatter.MIN, Scatter.MAX, Scatter.UPDATE):
        raise AggregationError(
            f"{variable.name}.{how.value} was called by each of {replica.num_replicas_in_sync} replicas with "
            f"aggregation {aggregation.name}, which does not say what their rows come to. HINT: create it with "
            "aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA, or SUM or MEAN for scatter_add, sub, mul and div."
        )
    indices, values = replica.all_gather((indices, values), axis=0)
    # A replica that leaves a row out counts for it with zeros, as in a dense gradient.
    reduction = reduction_of(ReduceOp.from_variable_aggregation(aggregation))
    return indices, reduction.finish(values, replica.num_replicas_in_sync)
