"""Functions that a transformation calls, such as the loss in a line search: of all replicas, from those of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.core.collectives.in_replica import guarded
from jaxtribute._src.core.execution.executor import Executor
from jaxtribute._src.core.execution.nests import is_array, map_leaves
from jaxtribute._src.core.execution.replica_context import ReplicaContext
from jaxtribute._src.core.jaxprs.core import as_function, closed, constants, opened
from jaxtribute._src.core.types import Array, Function, Leaf, Nest
from jaxtribute._src.core.values.distributed import PerReplica
from jaxtribute._src.core.values.enums import ReduceOp, reduction_of
from jaxtribute._src.core.values.mesh import reduced

if TYPE_CHECKING:
    from jaxtribute._src.core.strategies.base import Strategy


def reduced_in_program(fn: Function, executor: Executor, op: ReduceOp, replicas: int) -> Function:
    """The function over all replicas of a function of each one's data, in the program of each of them.

    Args:
      fn: a function of parameters, which are the same on all replicas; arguments by name are the replica's own.
      executor: the executor of the replica's code.
      op: how the results are reduced.
      replicas: how many replicas there are.
    """

    @functools.wraps(fn)
    def total(*args: Nest, **kwargs: Nest) -> Any:
        leaves, tree = jax.tree.flatten(args)
        places = [place for place, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]

        def own(*values: Any) -> Any:
            leaves_in = list(leaves)
            for place, value in zip(places, values, strict=True):
                leaves_in[place] = value
            return fn(*tree.unflatten(leaves_in), **kwargs)

        return _summed(own, executor, op, replicas)(*[leaves[place] for place in places])

    return total


def _summed(own: Function, executor: Executor, op: ReduceOp, replicas: int) -> Function:
    """`own` reduced over the replicas, with the derivatives of the reduced value by arguments that all of them share.

    The derivative of an all-reduce alone is that by the replicas' own values of the arguments.
    """

    @jax.custom_jvp
    def total(*values: Any) -> Any:
        results, tree = jax.tree.flatten(own(*values))
        return tree.unflatten(executor.all_reduce(results, op))

    @total.defjvp
    def derivative(values: Sequence[Any], tangents: Sequence[Any]) -> Any:
        # The mean of what is the same on all is the same; backwards it adds up what the replicas say of it.
        alike = tuple(reduced(lax.psum, tangent) / np.asarray(replicas, tangent.dtype) for tangent in tangents)
        _, changes = jax.jvp(own, values, alike)
        return total(*values), jax.tree.map(summed, changes)

    def summed(change: Array) -> Any:
        idle = executor.idle
        if idle:
            change = guarded(change, op, idle, replicas)
        return reduction_of(op).finish(reduced(lax.psum, change), replicas - len(idle))

    return total


def reduced_in_python(
    fn: Function | PerReplica[Any], op: ReduceOp, strategy: Strategy, idle: Sequence[int]
) -> Function:
    """The function over all replicas of functions of each one's data, for code of all that runs as Python.

    Args:
      fn: the functions, or the one that all replicas gave.
      op: how the results are reduced.
      strategy: the replicas', all of which are of this process.
      idle: the replicas that got no data.
    """
    replicas, reduction = strategy.extended.mesh.size, reduction_of(op)
    each = fn.values if isinstance(fn, PerReplica) else (fn,) * replicas

    @functools.wraps(each[0])
    def total(*args: Nest, **kwargs: Nest) -> Any:
        so_far: Any = None
        for place in range(replicas):
            own = map_leaves(functools.partial(_component, place), kwargs)
            with ReplicaContext(strategy, place):
                result = _traced(functools.partial(each[place], **own), args)
            result = jax.tree.map(lambda value, place=place: reduction.kept(value, place in idle), result)
            so_far = result if so_far is None else jax.tree.map(jnp.add, so_far, result)
        return jax.tree.map(lambda total: reduction.finish(total, replicas - len(idle)), so_far)

    return total


def _component(place: int, leaf: Leaf) -> Any:
    return np.asarray(leaf.values[place]) if isinstance(leaf, PerReplica) else leaf


def _traced(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """`fn(*args)` with the arrays that it closes over bound to no device: those of several replicas meet here."""
    program, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
    free = closed(
        opened(program), [np.asarray(constant) if is_array(constant) else constant for constant in constants(program)]
    )
    return jax.tree.unflatten(jax.tree.structure(shapes), as_function(free)(*jax.tree.leaves(args)))
