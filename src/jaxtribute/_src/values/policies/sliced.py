"""A variable stored in slices, one a replica: the slots of an optimizer with a sharded update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxtribute._src.types import Numeric
from jaxtribute._src.values.mesh import own
from jaxtribute._src.values.policies.base import Update, coerce
from jaxtribute._src.values.policies.in_pieces import PiecesPolicy

if TYPE_CHECKING:
    from jaxtribute._src.context import Context
    from jaxtribute._src.values.variable import Variable


class SlicedPolicy(PiecesPolicy):
    """Pieces that a replica sees as such; read and written whole in cross-replica context."""

    label = "SlicedVariable"

    def place(self, value: Numeric) -> jax.Array:
        """A slice of the flat value on each device."""
        return own(self.cut.stored(jnp.asarray(value)), self.where)

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
