"""A variable with one copy: made outside every scope, or under a strategy with one replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from jaxtribute._src.types import Numeric
from jaxtribute._src.values.enums import ReduceOp
from jaxtribute._src.values.mesh import everywhere, own, unbound
from jaxtribute._src.values.policies.base import Policy, Update, coerce

if TYPE_CHECKING:
    from jaxtribute._src.context import Context
    from jaxtribute._src.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.values.variable import Variable


class PlainPolicy(Policy):
    """One array, on one device, that every replica shares.

    A write from several replicas reaches the one copy from each of them, in replica order: additions add up,
    and of assignments the last replica's stays. There is nothing to aggregate.

    Args:
      mesh: the devices of the strategy's one replica, or None where JAX's default device is meant.
      layout: the axes within the replica that the array is split over.
    """

    def __init__(self, mesh: ReplicaMesh | None, layout: Layout = ()) -> None:
        self._mesh, self.layout = mesh, layout

    def laid_out(self, layout: Layout) -> Policy:
        """The array, split over the devices of the replica."""
        return PlainPolicy(self._mesh, layout)

    @property
    def mesh(self) -> ReplicaMesh | None:
        """The replicas' devices, if a strategy placed the variable."""
        return self._mesh

    def place(self, value: Numeric) -> jax.Array:
        """One array on its device or devices."""
        return own(value, self.where)

    def read(self, variable: Variable, context: Context) -> Any:
        """The array; to a replica that runs eagerly such that it can meet arrays of other devices."""
        array = context.executor.get(variable)
        if self.layout and self.mesh is not None and self.mesh.peers is not None and not context.executor.traced:
            return everywhere(array, self.mesh)
        return array if context.replica is None or context.executor.traced else unbound(array)

    def derivable(self, variable: Variable, context: Context) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
        """The array as it is read."""
        return self.read(variable, context), lambda value: (value, None)

    def write(self, variable: Variable, value: Numeric, update: Update, context: Context) -> None:
        """Updates the array; several replicas write one after the other."""
        value = coerce(variable, value)
        executor = context.executor
        if executor.local and executor.traced and context.replica is not None:
            # There is one copy, and each replica writes it in turn: what they add adds up, the last assignment stays.
            if update is Update.ASSIGN:
                value = executor.select(value, context.strategy.num_replicas_in_sync - 1)
            else:
                value = executor.all_reduce([value], ReduceOp.SUM)[0].astype(value.dtype)
        executor.together(lambda executor: executor.set(variable, update.apply(executor.get(variable), value)))
