"""Variables stored in equal pieces, one a replica; such as the slots of an optimizer with a sharded update."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec, Sharding

from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.placing import own
from jaxtribute._src.core.values.policies.base import Policy, Update, Writes, coerce

if TYPE_CHECKING:
    from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.core.values.slices import Cut
    from jaxtribute._src.core.values.variable import Variable


class PiecesPolicy(Policy):
    """One equal piece of the value a replica.

    Args:
      mesh: the devices of each replica.
      cut: how the value is cut.
      layout: the axes within a replica that the value is split over.
    """

    split = True

    layout: Layout

    def __init__(self, mesh: ReplicaMesh, cut: Cut, layout: Layout = ()) -> None:
        self._mesh, self._cut, self.layout = mesh, cut, layout

    @property
    def mesh(self) -> ReplicaMesh:
        return self._mesh

    @property
    def cut(self) -> Cut:
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
        return self.cut.spec

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.cut.stored_shape

    def local_shape(self, variable: Variable) -> tuple[int, ...]:
        """One piece, which is padded if they are uneven."""
        return self.cut.piece_shape

    def value(self, array: Numeric) -> Any:
        return self.cut.value(array)

    def gathered(self, array: jax.Array) -> jax.Array:
        """A copy of the whole value in each replica, those of other processes too."""
        # Run as Python, where `jax.disable_jit` holds, it would give each replica a piece for the whole.
        with jax.disable_jit(False):
            return _gathered(array, self.cut, self.mesh.laid_out(self.layout))

    def pieces(self, value: Numeric) -> Any:
        return self.cut.stored(jnp.asarray(value))


class SlicedPolicy(PiecesPolicy):
    """Pieces that a replica sees as such; read and written whole in cross-replica context."""

    label = "SlicedVariable"
    writes = Writes.OWN

    def place(self, value: Numeric) -> jax.Array:
        """A slice of the flat value on each device."""
        return own(self.cut.stored(jnp.asarray(value)), self.where)

    def read_by_python(self, array: Numeric, variable: Variable) -> Any:
        """The value, gathered if other processes hold pieces of it: NumPy could not read it otherwise."""
        return self.value(array) if self.mesh.peers is None else self.gathered(array)

    def written_by_all(self, value: Numeric, update: Update, variable: Variable, shape: tuple[int, ...]) -> Any:
        return coerce(variable, value)

    def written_by_one(self, value: Numeric, variable: Variable) -> Any:
        return value

    @property
    def by_component(self) -> bool:
        """True if the pieces follow each other along axis 0."""
        return not self.cut.axis

    def components(self, array: Numeric, variable: Variable) -> tuple[Any, bool]:
        return array, False

    def contributed(self, array: Numeric) -> Any:
        return self.cut.scattered(array)


@partial(jax.jit, static_argnums=(1, 2))
def _gathered(array: jax.Array, cut: Cut, where: Sharding) -> jax.Array:
    return lax.with_sharding_constraint(cut.value(array), where)
