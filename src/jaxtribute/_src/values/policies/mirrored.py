"""A variable with an equal copy on every replica's device (ON_WRITE)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from jaxtribute._src.values.distributed import Mirrored
from jaxtribute._src.values.policies.base import Policy, Update, aggregated, check_aggregation, coerce

if TYPE_CHECKING:
    from jaxtribute._src.context import Context
    from jaxtribute._src.values.mesh import ReplicaMesh
    from jaxtribute._src.values.variable import Variable


class MirroredPolicy(Policy):
    """One replicated global array. What replicas write is aggregated first, so the copies stay equal.

    Args:
      mesh: the device of each replica.
    """

    label = "MirroredVariable"

    def __init__(self, mesh: ReplicaMesh) -> None:
        self._mesh = mesh

    @property
    def mesh(self) -> ReplicaMesh:
        """The replicas' devices."""
        return self._mesh

    def place(self, value: Any) -> jax.Array:
        """A copy on each device."""
        return self.mesh.replicate(value)

    def read(self, variable: Variable, context: Context) -> Any:
        """The copy that the context sees."""
        return context.frame.get(variable)

    def write(self, variable: Variable, value: Any, update: Update, context: Context) -> None:
        """Updates all copies alike, with what the replicas write combined."""
        if context.replica is not None and self.mesh.size > 1:
            check_aggregation(variable, value, update, self.mesh.size)
            value = aggregated(variable, value, context.replica)
        else:
            value = coerce(variable, value)
        frame = context.frame
        frame.together(lambda frame: frame.set(variable, update.apply(frame.get(variable), value)))

    def distributed(self, variable: Variable, context: Context) -> Any:
        """Its copies, as `Mirrored`."""
        return Mirrored(context.frame.get(variable), self.mesh)
