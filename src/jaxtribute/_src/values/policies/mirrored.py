"""A variable with an equal copy on every replica's device (ON_WRITE)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from jaxtribute._src.types import Numeric
from jaxtribute._src.values.distributed import Mirrored
from jaxtribute._src.values.mesh import everywhere, own, put
from jaxtribute._src.values.policies.base import Policy, Update, combined

if TYPE_CHECKING:
    from jaxtribute._src.context import Context
    from jaxtribute._src.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.values.variable import Variable


class MirroredPolicy(Policy):
    """One replicated global array. What replicas write is aggregated first, so the copies stay equal.

    Args:
      mesh: the devices of each replica.
      layout: the axes within a replica that each copy is split over.
    """

    label = "MirroredVariable"

    def __init__(self, mesh: ReplicaMesh, layout: Layout = ()) -> None:
        self._mesh, self.layout = mesh, layout

    def laid_out(self, layout: Layout) -> Policy:
        """Copies of which each is split over the devices of its replica."""
        return MirroredPolicy(self._mesh, layout)

    @property
    def mesh(self) -> ReplicaMesh:
        """The replicas' devices."""
        return self._mesh

    def place(self, value: Numeric) -> jax.Array:
        """A copy in each replica."""
        return own(value, self.where)

    def collected(self, array: jax.Array) -> jax.Array:
        """The copies that replicas have written, laid out as the variable is."""
        return put(array, self.mesh.laid_out(self.layout)) if self.mesh.group else array

    def read(self, variable: Variable, context: Context) -> Any:
        """The copy that the context sees; between workers, whose devices each hold parts of it, put together."""
        executor = context.executor
        array = executor.get(variable)
        if not self.layout or self.mesh.peers is None or executor.local or executor.traced:
            return array
        return everywhere(array, self.mesh)

    def write(self, variable: Variable, value: Numeric, update: Update, context: Context) -> None:
        """Updates all copies alike, with what the replicas write combined."""
        value = combined(variable, value, update, context, self.mesh.size)
        executor = context.executor
        executor.together(lambda executor: executor.set(variable, update.apply(executor.get(variable), value)))

    def distributed(self, variable: Variable, context: Context) -> Any:
        """Its copies, as `Mirrored`."""
        return Mirrored(context.executor.get(variable), self.mesh)
