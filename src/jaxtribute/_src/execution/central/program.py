"""A compiled program in two places: replicas on the mesh, variables and their updates on the parameter device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxtribute._src.execution.central.placing import place
from jaxtribute._src.execution.central.plan import Plan
from jaxtribute._src.execution.interrupts import Guard
from jaxtribute._src.values.mesh import ReplicaMesh
from jaxtribute._src.values.variable import Variable

Body = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]]


class CentralProgram:
    """Stands in for a `jax.jit` of `body`, and runs it in two places.

    The values of the variables that the replicas read go up, replicated; reduced values come down; the new values
    of the variables are computed once, on the parameter device, in the memory of the old ones.

    Args:
      body: a function of the written variables' arrays, the others' arrays and the arguments.
      donated: the variables that it writes.
      kept: the variables that it only reads.
      mesh: the devices of the replicas.
      parameter_device: the device of the central variables.
    """

    def __init__(
        self,
        body: Body,
        donated: Sequence[Variable],
        kept: Sequence[Variable],
        mesh: ReplicaMesh,
        parameter_device: jax.Device,
    ) -> None:
        self._body, self._mesh, self._device = body, mesh, parameter_device
        self._central = [variable.policy.parameter_device is not None for variable in (*donated, *kept)]
        self._count = len(donated)
        self._plans: dict[Any, Plan] = {}

    def __call__(self, donated: Sequence[Any], kept: Sequence[Any], leaves: Sequence[Any], guard: Guard) -> list[Any]:
        """The variables' new arrays, and behind them the results, as `body` gives them."""
        guard.defer()  # several programs, with Python between them
        key = tuple((leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False), _is_split(leaf)) for leaf in leaves)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(donated, kept, leaves)
        return plan(donated, kept, leaves)

    def _plan(self, donated: Sequence[Any], kept: Sequence[Any], leaves: Sequence[Any]) -> Plan:
        closed, shapes = jax.make_jaxpr(self._body, return_shape=True)(donated, kept, leaves)
        tree = jax.tree.structure(shapes[-1])
        central = [*self._central, *(False for _ in leaves)]
        split = [*(False for _ in self._central), *(_is_split(leaf) for leaf in leaves)]
        state = [*self._central[: self._count], *(False for _ in range(tree.num_leaves))]
        stages = place(closed.jaxpr, central, split, state)
        return Plan(closed, stages, central, self._count, tree, self._mesh, self._device)


def _is_split(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1 and not leaf.is_fully_replicated
