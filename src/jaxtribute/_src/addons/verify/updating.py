"""An optimizer's update for variables that are kept otherwise than here: the transformation itself, on whole values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from jaxtribute import Optimizer, ReduceOp, get_replica_context
from jaxtribute.extending import Context, Nests


def applied(chosen: Callable[[Any], bool]) -> Any:
    """`Optimizer.apply_gradients` as it is, but of chosen optimizers; for these with slots as they begin."""
    original = Optimizer.apply_gradients

    def apply_gradients(self: Any, grads_and_vars: Any, reduce_op: Any = "SUM", **extra: Any) -> None:
        if not chosen(self):
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
