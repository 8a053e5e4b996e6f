"""A variable stored in slices, one a replica: the slots of an optimizer with a sharded update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, Sharding

from jaxtribute._src.types import Numeric
from jaxtribute._src.values.mesh import own
from jaxtribute._src.values.policies.base import Policy, Update, coerce
from jaxtribute._src.values.slices import Cut

if TYPE_CHECKING:
    from jaxtribute._src.context import Context
    from jaxtribute._src.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.values.variable import Variable


class SlicedPolicy(Policy):
    """One equal piece of the value a replica.

    Read and written whole in cross-replica context; a replica sees its piece.

    Args:
      mesh: the devices of each replica.
      cut: how the value is cut.
      layout: the axes within a replica that the value is split over.
    """

    label = "SlicedVariable"
    split = True

    def __init__(self, mesh: ReplicaMesh, cut: Cut, layout: Layout = ()) -> None:
        self._mesh, self._cut, self.layout = mesh, cut, layout

    @property
    def cut(self) -> Cut:
        """The way in which the value is cut."""
        return self._cut

    @property
    def form(self) -> str:
        """Flat, unless an axis is cut."""
        return "flat" if self.cut.axis is None else "value"

    @property
    def where(self) -> Sharding:
        """The pieces over the replicas, each shared by the replica's devices."""
        return self.cut.laid_out(self.layout, self.mesh)

    @property
    def spec(self) -> PartitionSpec:
        """The axis that is cut."""
        return self.cut.spec

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """That of all pieces together."""
        return self.cut.stored_shape

    @property
    def mesh(self) -> ReplicaMesh:
        """The replicas' devices."""
        return self._mesh

    def place(self, value: Numeric) -> jax.Array:
        """A slice of the flat value on each device."""
        return own(self.cut.stored(jnp.asarray(value)), self.where)

    def local_shape(self, variable: Variable) -> tuple[int, ...]:
        """One piece, which is padded where they are uneven."""
        return self.cut.piece_shape

    def read(self, variable: Variable, context: Context) -> Any:
        """A replica's own slice; elsewhere the whole value."""
        stored = context.executor.get(variable)
        return stored if context.executor.local else self.cut.value(stored)

    def write(self, variable: Variable, value: Numeric, update: Update, context: Context) -> None:
        """Updates a replica's own slice; elsewhere the whole value."""
        executor = context.executor
        value = value if executor.local else self.cut.stored(coerce(variable, value))
        executor.together(lambda executor: executor.set(variable, update.apply(executor.get(variable), value)))

    def whole(self, variable: Variable, context: Context) -> Any:
        """Reads like `read`: an update of slices needs no other slice."""
        return self.read(variable, context)

    def store(self, variable: Variable, value: Numeric, context: Context) -> None:
        """Cuts the value into slices."""
        context.executor.set(variable, self.cut.stored(jnp.asarray(value)))

    def distributed(self, variable: Variable, context: Context) -> Any:
        """The pieces, as `PerReplica`; where another axis is cut than the first one, the value."""
        stored = context.executor.get(variable)
        if self.cut.axis:
            return stored if context.executor.local else self.cut.value(stored)
        return context.executor.component(stored, self.mesh, scalar=False)
