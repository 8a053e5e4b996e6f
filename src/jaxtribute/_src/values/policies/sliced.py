"""A variable stored in slices, one a replica: the slots of an optimizer with a sharded update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxtribute._src.types import Numeric
from jaxtribute._src.values.mesh import own
from jaxtribute._src.values.policies.base import Update, Writes, coerce
from jaxtribute._src.values.policies.in_pieces import PiecesPolicy

if TYPE_CHECKING:
    from jaxtribute._src.values.variable import Variable


class SlicedPolicy(PiecesPolicy):
    """Pieces that a replica sees as such; read and written whole in cross-replica context."""

    label = "SlicedVariable"
    writes = Writes.OWN

    def place(self, value: Numeric) -> jax.Array:
        """A slice of the flat value on each device."""
        return own(self.cut.stored(jnp.asarray(value)), self.where)

    def written_by_all(self, value: Numeric, update: Update, variable: Variable, shape: tuple[int, ...]) -> Any:
        """The whole value."""
        return coerce(variable, value)

    def written_by_one(self, value: Numeric, variable: Variable) -> Any:
        """A replica's piece."""
        return value

    @property
    def by_component(self) -> bool:
        """True if the pieces lie behind each other along axis 0."""
        return not self.cut.axis

    def components(self, array: Numeric, variable: Variable) -> tuple[Any, bool]:
        """The pieces."""
        return array, False

    def contributed(self, array: Numeric) -> Any:
        """The replica's piece of the sum of all replicas' arrays."""
        return self.cut.scattered(array)
