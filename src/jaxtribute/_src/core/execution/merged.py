"""`MergedReplicas`: the executor of a `merge_call` among replicas that are being traced."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from jaxtribute._src.core.collectives import in_replica
from jaxtribute._src.core.collectives.cross_replica import check_axes
from jaxtribute._src.core.execution import standpoints
from jaxtribute._src.core.execution.executor import Executor, LocalPerReplica
from jaxtribute._src.core.types import Array, Numeric

if TYPE_CHECKING:
    from jaxtribute._src.core.execution.traced import TracedReplica
    from jaxtribute._src.core.strategies.base import Strategy
    from jaxtribute._src.core.values.creating import Making
    from jaxtribute._src.core.values.enums import ReduceOp
    from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.core.values.variable import Variable


class MergedReplicas(Executor):
    """A `merge_call` in a program that is being traced: code of all replicas, which each of them computes.

    Args:
      replica: the executor of the replica function; variables are read and written there.
    """

    local = True
    traced = True
    standpoint = standpoints.IN_MERGE_CALL

    def __init__(self, replica: TracedReplica) -> None:
        self.replica = replica

    @property
    def view(self) -> Hashable:
        return self.replica.view

    def get(self, variable: Variable) -> Any:
        """Returns what the replica holds of the variable."""
        return self.replica.get(variable)

    def set(self, variable: Variable, value: Numeric) -> None:
        """Sets what the replica holds of the variable."""
        self.replica.set(variable, value)

    def derive(self, variable: Variable, make: Callable[[Any], Any]) -> Any:
        """Returns `make` of what the replica holds of the variable."""
        return self.replica.derive(variable, make)

    def create(self, make: Making) -> Variable:
        """Makes the variable, outside the traced program."""
        return self.replica.create(make)

    def reduce(
        self, strategy: Strategy, values: Sequence[Any], op: ReduceOp, axis: int | tuple[int, ...] | None
    ) -> list[Any]:
        """Returns each value reduced, of which this replica has its component."""
        return [self._reduced(strategy, value, op, axis) for value in values]

    def _reduced(self, strategy: Strategy, value: Numeric, op: ReduceOp, axis: int | tuple[int, ...] | None) -> Any:
        if not isinstance(value, LocalPerReplica):
            return super().reduce(strategy, [value], op, axis)[0]
        axes = check_axes(axis, value.data.ndim)
        return in_replica.reduce_local(value.data, op, axes, value.mesh.size, value.idle, value.uneven)

    def gather(self, value: Numeric, axis: int) -> Any:
        """Returns a value concatenated over the replicas, of which this one has its component."""
        if isinstance(value, LocalPerReplica):
            return self.replica.all_gather([value.data], axis)[0]
        return super().gather(value, axis)

    def constrain(self, value: Array, layout: Layout, mesh: ReplicaMesh) -> Array:
        return self.replica.constrain(value, layout, mesh)
