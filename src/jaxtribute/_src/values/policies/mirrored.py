"""A variable with an equal copy on every replica's device (ON_WRITE)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from jaxtribute._src.types import Numeric
from jaxtribute._src.values.distributed import Mirrored
from jaxtribute._src.values.policies.base import Policy, Update, combined

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

    def place(self, value: Numeric) -> jax.Array:
        """A copy on each device."""
        return self.mesh.replicate(value)

    def read(self, variable: Variable, context: Context) -> Any:
        """The copy that the context sees."""
        return context.executor.get(variable)

    def write(self, variable: Variable, value: Numeric, update: Update, context: Context) -> None:
        """Updates all copies alike, with what the replicas write combined."""
        value = combined(variable, value, update, context, self.mesh.size)
        executor = context.executor
        executor.together(lambda executor: executor.set(variable, update.apply(executor.get(variable), value)))

    def distributed(self, variable: Variable, context: Context) -> Any:
        """Its copies, as `Mirrored`."""
        return Mirrored(context.executor.get(variable), self.mesh)
