"""A variable with a local value on each replica, reduced when it is read across replicas (ON_READ)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxtribute._src.types import Numeric
from jaxtribute._src.values.distributed import PerReplica
from jaxtribute._src.values.enums import VariableAggregation
from jaxtribute._src.values.mesh import own
from jaxtribute._src.values.policies.base import Policy, Update, coerce
from jaxtribute.errors import VariableError

if TYPE_CHECKING:
    from jaxtribute._src.context import Context
    from jaxtribute._src.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.values.variable import Variable


class OnReadPolicy(Policy):
    """The local values of shape `s` lie in one global array of shape `(replicas, *s)`, one row a replica.

    Metrics are made of it: replicas write without any communication.

    Args:
      mesh: the devices of each replica.
      layout: the axes within a replica that each local value is split over.
    """

    label = "SyncOnReadVariable"
    split = True

    def __init__(self, mesh: ReplicaMesh, layout: Layout = ()) -> None:
        self._mesh, self.layout = mesh, layout

    def laid_out(self, layout: Layout) -> Policy:
        """Local values that are split over the devices of their replica."""
        return OnReadPolicy(self._mesh, layout)

    @property
    def mesh(self) -> ReplicaMesh:
        """The replicas' devices."""
        return self._mesh

    def place(self, value: Numeric) -> jax.Array:
        """A row of its own for each replica, all equal at first."""
        rows = jnp.broadcast_to(jnp.asarray(value), (self.mesh.size, *jnp.shape(value)))
        return own(rows, self.where)

    @property
    def form(self) -> str:
        """One value a replica."""
        return "rows"

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One row a replica."""
        return (self.mesh.size, *shape)

    def local_shape(self, variable: Variable) -> tuple[int, ...]:
        """One row."""
        return (1, *variable.shape)

    def read(self, variable: Variable, context: Context) -> Any:
        """A replica's own row; elsewhere the rows combined as the variable's aggregation says."""
        rows = context.executor.get(variable)
        if context.executor.local and context.replica is not None:
            return rows.reshape(variable.shape)
        how = variable.aggregation
        if how is VariableAggregation.NONE:
            raise VariableError(
                f"{variable.name} keeps one value a replica and has aggregation NONE: it has no single value to read "
                "in cross-replica context. HINT: read it in strategy.run, call "
                "strategy.experimental_local_results(variable), or give it an aggregation."
            )
        rows = context.executor.rows_of_all(rows)
        if how is VariableAggregation.ONLY_FIRST_REPLICA:
            return rows[0]
        return rows.sum(0, dtype=rows.dtype) if how is VariableAggregation.SUM else rows.mean(0)

    def write(self, variable: Variable, value: Numeric, update: Update, context: Context) -> None:
        """Updates a replica's own row; elsewhere all rows, so that a read gives the new value."""
        executor = context.executor
        if executor.local and context.replica is not None:
            value = jnp.reshape(coerce(variable, value), (1, *variable.shape))
        else:
            value = self._spread(variable, value, update, executor.get(variable).shape)
        executor.together(lambda executor: executor.set(variable, update.apply(executor.get(variable), value)))

    def gradient(self, variable: Variable, gradient: Numeric, context: Context) -> Any:
        """That for the combined value, from those for the rows."""
        if context.executor.local:
            return gradient.reshape(variable.shape)
        return gradient.sum(0) if variable.aggregation is VariableAggregation.MEAN else gradient[0]

    def distributed(self, variable: Variable, context: Context) -> Any:
        """The rows, as `PerReplica`."""
        rows, shape = context.executor.get(variable), variable.shape
        # Rows that lie one behind the other: each replica's component is its slice of axis 0.
        whole = rows.reshape(rows.shape[0] * shape[0], *shape[1:]) if shape else rows
        return context.executor.component(whole, self.mesh, scalar=not shape)

    def _spread(self, variable: Variable, value: Numeric, update: Update, rows: tuple[int, ...]) -> Any:
        """Value that a cross-replica write gives each replica, so that the next read returns `value`."""
        how = variable.aggregation
        if isinstance(value, PerReplica) and not value.is_ragged:
            return value.data.reshape(rows)
        if how is VariableAggregation.NONE:
            raise VariableError(
                f"{variable.name} has aggregation NONE: {update.value} in cross-replica context does not say what each "
                "replica gets. HINT: write it in strategy.run, or give it an aggregation."
            )
        value = coerce(variable, value)
        if how is VariableAggregation.SUM:
            if update is not Update.ASSIGN:
                raise VariableError(
                    f"{variable.name}.{update.value} in cross-replica context: a SUM variable kept on each replica has "
                    f"no one place to add {value} to. HINT: call it in strategy.run, or assign() the total."
                )
            value = value / jnp.asarray(self.mesh.size, variable.dtype)
            value = value.astype(variable.dtype)
        return jnp.broadcast_to(value, rows)
