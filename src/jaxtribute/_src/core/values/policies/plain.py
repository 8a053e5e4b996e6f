"""A variable with one copy: made outside every scope, or under a strategy with one replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.placing import own
from jaxtribute._src.core.values.policies.base import Policy, Writes

if TYPE_CHECKING:
    from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh


class PlainPolicy(Policy):
    """One array, on one device, that every replica shares.

    A write from several replicas reaches the one copy from each of them, in replica order: additions add up,
    and of assignments the last replica's stays. There is nothing to aggregate.

    Args:
      mesh: the devices of the strategy's one replica, or None if JAX's default device is meant.
      layout: the axes within the replica that the array is split over.
    """

    writes = Writes.IN_TURN

    layout: Layout

    def __init__(self, mesh: ReplicaMesh | None, layout: Layout = ()) -> None:
        self._mesh, self.layout = mesh, layout

    def laid_out(self, layout: Layout) -> Policy:
        return PlainPolicy(self._mesh, layout)

    @property
    def mesh(self) -> ReplicaMesh | None:
        return self._mesh

    def place(self, value: Numeric) -> jax.Array:
        return own(value, self.where)
