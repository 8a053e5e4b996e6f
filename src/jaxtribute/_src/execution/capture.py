"""Tracing a whole function once: its program, the variables that it touches and the batches that it draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxtribute._src import context as contexts
from jaxtribute._src.context import Context, entered
from jaxtribute._src.execution.compiled import TracedFunction
from jaxtribute._src.execution.frames import lift
from jaxtribute._src.execution.nests import is_array, map_leaves
from jaxtribute._src.jaxprs.core import ClosedJaxpr, Tracer
from jaxtribute._src.values.distributed import Mirrored, PerReplica
from jaxtribute._src.values.variable import Variable

_NUMBERS = (bool, int, float, complex)


@jax.tree_util.register_pytree_node_class
class Constant:
    """A result that is no array, such as a string or a variable: carried in the structure of the results."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        """No leaves: the value is part of the structure."""
        return (), self.value

    @classmethod
    def tree_unflatten(cls, value: Any, _: Any) -> Constant:
        """The inverse of `tree_flatten`."""
        return cls(value)


@dataclass(slots=True)
class Capture:
    """A traced function: its program over the dynamic arguments and the variables in `executor.inputs`."""

    closed: ClosedJaxpr
    executor: TracedFunction
    tree: Any
    constants: bool


def capture(call: Callable[[Sequence[Any]], Any], context: Context, leaves: Sequence[Any]) -> Capture:
    """Traces `call(leaves)` once in `context`; the variables themselves stay untouched.

    Args:
      call: the user's function of its dynamic arguments.
      context: the strategy and replica in force; its executor is replaced.
      leaves: arrays (or tracers) whose shapes and dtypes the program is for.
    """
    contexts.announce()
    seen: list[Any] = []

    def program(*leaves: Any) -> list[Any]:
        executor = TracedFunction()
        with entered(Context(context.strategy, context.replica, executor)):
            result = call(leaves)
        outputs, tree = jax.tree.flatten(map_leaves(_laid_out, result), is_leaf=is_constant)
        outputs: list[Any] = [
            leaf if is_array(leaf) or isinstance(leaf, (*_NUMBERS, Constant)) else Constant(leaf) for leaf in outputs
        ]
        constants = any(isinstance(leaf, Constant) for leaf in outputs)
        # A result must not share its buffer with a variable, which a later step gives up.
        owned = {id(value) for value in executor.values.values()}
        outputs = [jnp.copy(leaf) if id(leaf) in owned else leaf for leaf in outputs]
        arrays, tree = jax.tree.flatten(tree.unflatten(outputs))
        seen.extend((executor, tree, constants))
        return [*arrays, *(executor.values[variable] for variable in executor.written)]

    closed = jax.make_jaxpr(program)(*leaves)
    return Capture(lift(closed), *seen)


def is_constant(value: Any) -> bool:
    """True if a result is carried in the structure of the results."""
    return isinstance(value, Constant)


def _laid_out(value: Any) -> Any:
    """A distributed result on its replicas' devices, wherever the compiler would leave what it was computed from."""
    if isinstance(value, Variable):
        return Constant(value)
    if not isinstance(value, (PerReplica, Mirrored)) or value.mesh.size == 1 or not isinstance(value.data, Tracer):
        return value
    sharding = value.mesh.replicated
    if isinstance(value, PerReplica):
        if not value.data.ndim or value.data.shape[0] % value.mesh.size:
            return value
        sharding = value.mesh.split
    return replace(value, data=lax.with_sharding_constraint(value.data, sharding))
