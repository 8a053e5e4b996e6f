"""A variable with an equal copy on every replica's device (ON_WRITE)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from jaxtribute.errors import VariableError
from jaxtribute.values.distributed import Mirrored
from jaxtribute.values.enums import ReduceOp, VariableAggregation
from jaxtribute.values.policies.base import Policy, Update, coerce

if TYPE_CHECKING:
    from jaxtribute.context import Context
    from jaxtribute.execution.replica_context import ReplicaContext
    from jaxtribute.values.mesh import ReplicaMesh
    from jaxtribute.values.variable import Variable


class MirroredPolicy(Policy):
    """One replicated global array. What replicas write is aggregated first, so the copies stay equal."""

    label = "MirroredVariable"

    def __init__(self, mesh: ReplicaMesh) -> None:
        self.mesh: ReplicaMesh = mesh

    def place(self, value: Any) -> jax.Array:
        return self.mesh.replicate(value)

    def read(self, variable: Variable, context: Context) -> Any:
        return context.frame.get(variable)

    def write(self, variable: Variable, value: Any, update: Update, context: Context) -> None:
        if context.replica is not None and self.mesh.size > 1:
            value = self._aggregate(variable, value, update, context.replica)
        else:
            value = coerce(variable, value)
        frame = context.frame
        frame.set(variable, update.apply(frame.get(variable), value))

    def distributed(self, variable: Variable, context: Context) -> Any:
        return Mirrored(context.frame.get(variable), self.mesh)

    def _aggregate(self, variable: Variable, value: Any, update: Update, replica: ReplicaContext) -> Any:
        how = variable.aggregation
        if how is VariableAggregation.NONE:
            raise VariableError(
                f"{variable.name}.{update.value} was called by each of {self.mesh.size} replicas, and the variable does "
                "not say how to combine what they write. HINT: create it with aggregation=jd.VariableAggregation.SUM, "
                "MEAN or ONLY_FIRST_REPLICA, or write it outside strategy.run."
            )
        if how is VariableAggregation.SUM and isinstance(value, (bool, int, float, complex)):
            raise VariableError(
                f"{variable.name}.{update.value}({value!r}): the same Python number from every replica cannot be summed "
                "without doubt about what is meant. HINT: pass an array, or create the variable with "
                "aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA."
            )
        value = coerce(variable, value)
        if how is VariableAggregation.ONLY_FIRST_REPLICA:
            return replica.first(value)
        return replica.all_reduce(ReduceOp.from_variable_aggregation(how), value)
