"""Functions that a transformation calls, such as the loss in a line search: of all replicas, from those of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.core.collectives.in_replica import is_idle
from jaxtribute._src.core.execution.executor import Executor
from jaxtribute._src.core.execution.nests import is_array, map_leaves
from jaxtribute._src.core.jaxprs.core import as_function, closed, constants, opened
from jaxtribute._src.core.types import Array, Function, Leaf, Nest
from jaxtribute._src.core.values.distributed import PerReplica
from jaxtribute._src.core.values.enums import ReduceOp, reduction_of
from jaxtribute._src.core.values.mesh import ReplicaMesh, reduced


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
            change = jnp.where(is_idle(idle, replicas), jnp.zeros_like(change), change)
        return reduction_of(op).finish(reduced(lax.psum, change), replicas - len(idle))

    return total


def reduced_in_python(fn: Function | PerReplica[Any], op: ReduceOp, mesh: ReplicaMesh, idle: Sequence[int]) -> Function:
    """The function over all replicas of functions of each one's data, for code of all that runs as Python.

    Args:
      fn: the functions, or the one that all replicas gave.
      op: how the results are reduced.
      mesh: the replicas' devices, all of this process.
      idle: the replicas that got no data.
    """
    each = fn.values if isinstance(fn, PerReplica) else (fn,) * mesh.size
    active = [place for place in range(mesh.size) if place not in idle]

    @functools.wraps(each[0])
    def total(*args: Nest, **kwargs: Nest) -> Any:
        so_far: Any = None
        for place in active:
            own = map_leaves(functools.partial(_component, place), kwargs)
            result = _traced(functools.partial(each[place], **own), args)
            so_far = result if so_far is None else jax.tree.map(jnp.add, so_far, result)
        return jax.tree.map(lambda total: reduction_of(op).finish(total, len(active)), so_far)

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
