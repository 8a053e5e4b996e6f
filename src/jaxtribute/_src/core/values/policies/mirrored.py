"""A variable with an equal copy on every replica's device (ON_WRITE)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.placing import own, put
from jaxtribute._src.core.values.policies.base import Policy
from jaxtribute._src.core.values.policies.on_read import OnReadPolicy

if TYPE_CHECKING:
    from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh


class MirroredPolicy(Policy):
    """One replicated global array. What replicas write is aggregated first, so the copies stay equal.

    Args:
      mesh: the devices of each replica.
      layout: the axes within a replica that each copy is split over.
    """

    label = "MirroredVariable"
    mirrored = True

    layout: Layout

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
        # Where a replica is one device there is only one way to lie there.
        return put(array, self.mesh.laid_out(self.layout)) if self.mesh.group else array

    def accumulated(self) -> Policy:
        """A sum in each replica, of its own gradients."""
        return OnReadPolicy(self._mesh, self.layout)
