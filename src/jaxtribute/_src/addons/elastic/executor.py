"""`IslandReplica`: how the code of an island's replica runs: as it would alone, but for what crosses islands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import PerReplica, ReduceOp, Variable, VariableAggregation
from jaxtribute._src.addons.elastic.lengths import Lengths
from jaxtribute._src.addons.elastic.runtime import IslandMesh
from jaxtribute._src.addons.elastic.values import FOREIGN, IslandValue, is_value
from jaxtribute._src.addons.elastic.variables import check_known
from jaxtribute.errors import ArgumentError, VariableError
from jaxtribute.extending import Context, Executor, InReplica, Overlay, Slicing, Summation, Update, operand
from jaxtribute.typing import Array, Function, Leaf, Nest


def check_operation(op: ReduceOp) -> None:
    """Checks that islands can reduce by an operation.

    Raises:
      ArgumentError: it is neither a sum nor a mean.
    """
    if op not in (ReduceOp.SUM, ReduceOp.MEAN):
        raise ArgumentError(f"islands reduce by SUM and MEAN, not by {op}. HINT: all_gather, and reduce what it gives.")


def keeping(op: ReduceOp, rows: int | None) -> Callable[[list[Any]], list[Any]]:
    """Gives the function that leaves of arrays, or of their cotangents, what counts in a reduction.

    Args:
      op: the reduction. Of an island without examples a mean leaves out all, and a sum NaN alone, which means over no
        examples come to: what else it says may be meant, such as a count or a penalty.
      rows: the number of examples that the arrays were computed from.
    """
    if rows is None or rows > 0:
        return list
    reduction = Slicing.reduction_of(ReduceOp.MEAN if rows == FOREIGN else op)
    # What is left out still comes of the array: all islands cut their programs at the same places.
    return lambda arrays: [reduction.kept(array, True) for array in arrays]


def reduced(mesh: IslandMesh, values: Sequence[Leaf], op: ReduceOp, rows: int | None) -> list[Any]:
    """Each array reduced over the islands; means weigh them by their numbers of examples.

    Args:
      mesh: this island's.
      values: its arrays.
      op: the reduction.
      rows: the number of examples that they were computed from; see `keeping`.
    """
    check_operation(op)
    reduction, kept = Slicing.reduction_of(op), keeping(op, rows)
    arrays = kept(list(map(reduction.prepared, values)))
    if op is ReduceOp.SUM:
        return mesh.total(arrays, "a sum", kept)
    weight = jnp.float32(1 if rows is None else max(rows, 0))
    weighed = [array * weight.astype(array.dtype) for array in arrays]
    *totals, weights = mesh.total([*weighed, weight], "a mean", kept)
    given = [jnp.asarray(value).dtype for value in values]
    return [reduction.finish(total, weights, dtype) for total, dtype in zip(totals, given, strict=True)]


class IslandReplica(Overlay):
    """The one replica of an island.

    Args:
      below: the executor of the code around.
      mesh: the island's device and the others.
      rows: the number of the replica's own examples; None if it is given none.
      lengths: gives the lengths on all replicas of an array that they gather, of its own.
    """

    differentiating = False

    def __init__(self, below: Executor, mesh: IslandMesh, rows: int | None, lengths: Lengths) -> None:
        super().__init__(below, {})
        self.standpoint = InIsland(below.standpoint)
        self._mesh, self._lengths, self.rows = mesh, lengths, rows

    def get(self, variable: Variable) -> Any:
        return self.below.get(variable)

    def set(self, variable: Variable, value: Any) -> None:
        self.below.set(variable, value)

    def derive(self, variable: Variable, make: Callable[[Any], Any]) -> Any:
        return self.below.derive(variable, make)

    @property
    def view(self) -> Any:
        return self.below.view

    @property
    def idle(self) -> tuple[int, ...]:
        return ()

    def all_reduce(self, values: list[Array], op: ReduceOp, summation: Summation | None = None) -> list[Array]:
        """Returns each array reduced over the islands."""
        return reduced(self._mesh, values, op, self.rows)

    def all_gather(self, values: list[Array], axis: int) -> list[Array]:
        """Returns each array concatenated over the islands."""
        return [self._gathered(value, axis) for value in values]

    def _gathered(self, value: Array, axis: int) -> Any:
        lengths = self._lengths(value.shape[axis])
        # As a sum of arrays that are zero where the others' rows are: all islands bring one shape.
        sums = value.astype(jnp.int32) if value.dtype == jnp.bool_ else value
        before = [0, *np.cumsum(lengths)]
        shape = (*value.shape[:axis], int(before[-1]), *value.shape[axis + 1 :])
        starts = [jnp.int32(0)] * value.ndim
        starts[axis] = jnp.asarray(np.asarray(before[:-1], np.int32))[self._mesh.place]
        from jax import lax

        placed = lax.dynamic_update_slice(jnp.zeros(shape, sums.dtype), sums, starts)
        kept = keeping(ReduceOp.SUM, self.rows)  # of cotangents: rows that there are not are not gathered
        return self._mesh.total([placed], "a gather", kept)[0].astype(value.dtype)

    def select(self, value: Array, replica: int) -> Array:
        """Returns the array of one island."""
        sums = Slicing.reduction_of(ReduceOp.SUM).prepared(value)
        kept = jnp.where(self._mesh.place == np.int32(replica), sums, jnp.zeros_like(sums))
        return self._mesh.total([kept], "a choice")[0].astype(jnp.asarray(value).dtype)

    def merge(self, fn: Function, args: Nest, kwargs: Nest) -> Nest:
        """Returns the result of `fn(strategy, ...)`, which each island computes alike."""
        strategy = Context.current().strategy

        def wrapped(leaf: Leaf) -> Any:
            known = isinstance(leaf, (jax.Array, np.ndarray, np.generic))
            return IslandValue(jnp.asarray(leaf), self._mesh, rows=self.rows) if known else leaf

        args, kwargs = jax.tree.map(wrapped, (args, kwargs), is_leaf=is_value)
        with Context(strategy, None, self.below).entered():
            result = fn(strategy, *args, **kwargs)
        return jax.tree.map(lambda leaf: leaf.data if isinstance(leaf, IslandValue) else leaf, result, is_leaf=is_value)

    def component(self, value: Array, mesh: Any, *, scalar: bool) -> PerReplica[Any]:
        return IslandValue(value, mesh, rows=self.rows)


class InIsland(InReplica):
    """The replica of an island: it sees variables as it would alone, and what it writes is combined.

    Args:
      below: the standpoint of the code around.
    """

    def __init__(self, below: Any) -> None:
        self._below = below

    def read(self, executor: Executor, variable: Variable, as_replica: bool) -> Any:
        return self._below.read(executor, variable, as_replica)

    def whole(self, executor: Executor, variable: Variable) -> Any:
        return self._below.whole(executor, variable)

    def store(self, executor: Executor, variable: Variable, value: Any) -> None:
        self._below.store(executor, variable, value)

    def derivable(self, executor: Executor, variable: Variable, as_replica: bool) -> Any:
        return self._below.derivable(executor, variable, as_replica)

    def gradient(self, gradient: Any, variable: Variable) -> Any:
        return self._below.gradient(gradient, variable)

    def distributed(self, executor: Executor, variable: Variable) -> Any:
        return self._below.distributed(executor, variable)

    def given(self, executor: Executor, variable: Variable, value: Any, update: Update, as_replica: bool) -> Any:
        """Returns the one value that the islands' writes come to, as the variable's aggregation says."""
        check_known(variable)
        own = self._below.given(executor, variable, value, update, False)
        how = variable.aggregation
        if not as_replica:
            return own
        if how is VariableAggregation.NONE:
            raise VariableError(
                f"{variable.name} is written by each island, and its aggregation is NONE. HINT: create it with "
                "aggregation=jd.VariableAggregation.MEAN, SUM or ONLY_FIRST_REPLICA."
            )
        if how is VariableAggregation.SUM and not hasattr(operand(value), "shape"):
            raise VariableError(
                f"{variable.name} sums what the islands write, and {value!r} is a Python number, of which there is "
                "one. HINT: write an array, jnp.asarray(value), if each island's is to count."
            )
        if how is VariableAggregation.ONLY_FIRST_REPLICA:
            return executor.select(own, 0)
        return executor.all_reduce([own], ReduceOp.from_variable_aggregation(how))[0].astype(variable.dtype)

    def apply(
        self, executor: Executor, grads: list[Any], op: ReduceOp | None, update: Any, others: Sequence[Any] = ()
    ) -> None:
        """Calls `update` here: each island computes it, of gradients that are reduced.

        They are reduced at each call of a cycle too (`accumulate_steps`): what an island alone had would die with it.
        """
        if op is not None:
            grads, op = executor.all_reduce(grads, op), None
        update(grads, op, others)

    def reducible(self, strategy: Any, grads: list[Any], op: ReduceOp | None) -> tuple[list[Any], ReduceOp | None]:
        """Leaves the gradients as they are: `apply` has reduced them."""
        return grads, op
