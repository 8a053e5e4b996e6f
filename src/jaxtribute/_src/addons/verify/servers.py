"""Functions of a coordinator: what stands here for variables and optimizers on parameter servers.

Reads fetch what the servers hold, once; nothing is sent to them, and no slot is read: slots are as they begin.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from types import FunctionType
from typing import Any
from unittest import mock

import jax
import optax

from jaxtribute import Optimizer, ReduceOp, Variable, VariableAggregation, get_replica_context
from jaxtribute._src.addons.parameter_servers.scheduling.per_worker import PerWorkerIterator
from jaxtribute._src.addons.parameter_servers.variables.variable import ServerVariable, ShardedVariable
from jaxtribute.experimental import Event
from jaxtribute.extending import Context, Function, MirroredPolicy, Nests

_KEPT = frozenset({"__init__", "stored", "layout", "device"})


class Scheduled(ExitStack):
    """A call of `ClusterCoordinator.schedule`; within its block the function can run here, on copies.

    Args:
      event: the event that tells of it.
    """

    def __init__(self, event: Event) -> None:
        super().__init__()
        coordinator: Any = event.subject
        function, args, kwargs = event.arguments
        self.strategy: Any = coordinator.strategy
        self.function: Any = function
        self.name = getattr(function, "__name__", "the scheduled function")
        self.call: Any = function.python_function if isinstance(function, Function) else function
        self._nest = tuple(args), dict(kwargs)

    def arguments(self, fed: dict[int, list[Any]]) -> Any:
        """The arguments as a worker would have them, with a batch of each dataset noted in `fed`."""
        for leaf in Nests.flatten(self._nest)[0]:
            if isinstance(leaf, PerWorkerIterator):
                fed[id(leaf)] = [next(leaf.made_here())]
        return self._nest

    def __enter__(self) -> Scheduled:
        """Lets variables of servers be plain ones."""
        super().__enter__()
        policy = MirroredPolicy(self.strategy.extended.mesh)
        access = self.strategy.extended.server_policy.access
        for kind in (ServerVariable, ShardedVariable):
            for name, own in list(vars(kind).items()):
                if isinstance(own, FunctionType | property) and hasattr(Variable, name) and name not in _KEPT:
                    self.enter_context(mock.patch.object(kind, name, getattr(Variable, name)))
        self.enter_context(mock.patch.object(ServerVariable, "policy", policy))
        fetched = property(lambda variable: access.read([variable.layout])[0])
        self.enter_context(mock.patch.object(ServerVariable, "stored", fetched))
        # A worker is one replica, of which a variable need not say how several write it.
        self.enter_context(mock.patch.object(ServerVariable, "aggregation", property(_aggregation)))
        self.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # that the function runs on the coordinator
        self.enter_context(mock.patch.object(Optimizer, "apply_gradients", _applied(Optimizer.apply_gradients)))
        self.enter_context(self.strategy.scope())
        return self


def _aggregation(variable: Any) -> VariableAggregation:
    own = variable._aggregation
    return VariableAggregation.ONLY_FIRST_REPLICA if own is VariableAggregation.NONE else own


def _applied(original: Any) -> Any:
    """`Optimizer.apply_gradients` that updates what stands for variables of servers, too."""

    def apply_gradients(self: Any, grads_and_vars: Any, reduce_op: Any = "SUM", **extra: Any) -> None:
        if self.remote is None:
            original(self, grads_and_vars, reduce_op, **extra)
            return
        grads = self._targets.ordered(grads_and_vars)
        context = get_replica_context()
        if reduce_op is not None and context is not None:
            grads = context.all_reduce(ReduceOp.parse(reduce_op), grads)
        held, tree = Nests.flatten(self.nest)
        params = tree.unflatten([variable.read_value() for variable in held])
        updates, _ = self.transform.update(tree.unflatten(grads), self.transform.init(params), params, **extra)
        executor = Context.current().executor
        for variable, value in zip(held, jax.tree.leaves(optax.apply_updates(params, updates)), strict=True):
            executor.standpoint.store(executor, variable, value)

    return apply_gradients
