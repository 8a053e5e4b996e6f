"""Gradients added up over several calls, to be reduced and applied once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.collectives.in_replica import all_reduce, contributions, divided, kept
from jaxtribute._src.context import Context
from jaxtribute._src.optimizer.slicing import Slice
from jaxtribute._src.types import Numeric
from jaxtribute._src.values.distributed import PerReplica
from jaxtribute._src.values.enums import ReduceOp, VariableAggregation, VariableSynchronization
from jaxtribute._src.values.mesh import AXIS
from jaxtribute._src.values.policies.base import Policy
from jaxtribute._src.values.variable import Variable

if TYPE_CHECKING:
    from jaxtribute._src.strategies.base import Strategy


class Kind(Enum):
    """Storage of the sum of a variable's gradients."""

    ROWS = "one sum a replica, of its own gradients, reduced when the cycle ends"
    SLICES = "one slice a replica, of reduced gradients, where whole ones would take the memory that slices save"
    WHOLE = "one sum, of reduced gradients, where one device keeps all variables"


@dataclass(frozen=True)
class Accumulation:
    """The sums of a cycle so far, as variables.

    Attributes:
      steps: how many calls make a cycle.
      mean: whether a cycle applies the mean of the calls' gradients, rather than their sum.
      sums: one for each variable of the optimizer.
      count: how many calls the cycle has had.
      kinds: how each sum is kept.
    """

    steps: int
    mean: bool
    sums: tuple[Variable, ...]
    count: Variable
    kinds: tuple[Kind, ...]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The state that a checkpoint must keep."""
        return (*self.sums, self.count)

    def added(self, grads: Sequence[Any], op: ReduceOp | None, context: Context) -> list[Any]:
        """The sums' arrays after one more call.

        Args:
          grads: one for each variable: this replica's in a compiled program, elsewhere all replicas' (`PerReplica`) or
            reduced ones.
          op: how they are reduced, or None if they are.
          context: the context in force; not that of a replica that runs eagerly.
        """
        sums = [context.executor.get(variable) for variable in self.sums]
        give = _given_here if context.executor.local else _given_by_all
        whole = [i for i, kind in enumerate(self.kinds) if kind is Kind.WHOLE]
        mesh = context.strategy.extended.mesh
        if whole and context.executor.local and mesh.size > 1:  # one reduction of them all
            totals = _reduced_here([grads[i] for i in whole], op, context)
            grads = [totals[whole.index(i)] if i in whole else grad for i, grad in enumerate(grads)]
        if not context.executor.local:
            own = [i for i, kind in enumerate(self.kinds) if kind is not Kind.ROWS and isinstance(grads[i], PerReplica)]
            reduced = _reduced_by_all([grads[i] for i in own], op, context)
            grads = [reduced[own.index(i)] if i in own else grad for i, grad in enumerate(grads)]
        return [
            total + give(variable, grad, op, kind, context).astype(total.dtype)
            for variable, total, grad, kind in zip(self.sums, sums, grads, self.kinds, strict=True)
        ]

    def cycle(self, sums: Sequence[Any], dtypes: Sequence[Any], context: Context) -> list[Any]:
        """The gradients of a whole cycle: a replica's own in a compiled program (slices as such), elsewhere reduced."""
        found: list[Any] = []
        rows = [i for i, kind in enumerate(self.kinds) if kind is Kind.ROWS and not context.executor.local]
        for total, variable, kind, dtype in zip(sums, self.sums, self.kinds, dtypes, strict=True):
            array = (total / np.asarray(self.steps, total.dtype) if self.mean else total).astype(dtype)
            if not context.executor.local:
                found.append(_whole(variable, array, kind))
            elif variable.policy.cut is not None:
                found.append(Slice(array, variable.policy.cut))
            else:
                found.append(array.reshape(variable.shape))
        for i, total in zip(rows, _reduced_by_all([found[i] for i in rows], ReduceOp.SUM, context), strict=True):
            found[i] = total
        return found


def make_accumulation(strategy: Strategy, variables: Sequence[Variable], steps: int, mean: bool) -> Accumulation:
    """Makes the sums of `variables`, zero, and the count."""
    plain, _ = strategy.extended.variable_policy(VariableSynchronization.ON_WRITE)
    policies = [variable.policy.accumulated() for variable in variables]
    kinds = tuple(_kind(variable.policy, policy) for variable, policy in zip(variables, policies, strict=True))
    sums = [
        Variable.with_policy(
            array,
            policy,
            name=f"{variable.name.removesuffix(':0')}/accumulated",
            strategy=strategy,
            shape=variable.shape if policy.split else None,
            aggregation=VariableAggregation.SUM,
        )
        for variable, policy, array in zip(variables, policies, _zeros(variables, policies), strict=True)
    ]
    policy = plain.fitted((), np.dtype(np.int32))
    count = Variable.with_policy(np.zeros((), np.int32), policy, name="accumulated_calls", strategy=strategy)
    return Accumulation(steps, mean, tuple(sums), count, kinds)


def _zeros(variables: Sequence[Variable], policies: Sequence[Policy]) -> list[Any]:
    """The first sums, those of several replicas made where they stay: no device ever holds those of others."""
    dtypes = [_dtype(variable.dtype) for variable in variables]
    found: list[Any] = [np.zeros(v.shape, dtype) for v, dtype in zip(variables, dtypes, strict=True)]
    parts = [i for i, policy in enumerate(policies) if policy.split]

    def zeros() -> list[Any]:
        return [jnp.zeros(policies[i].stored_shape(variables[i].shape), dtypes[i]) for i in parts]

    if parts:
        # One program for all: a call for each variable would be compiled for each shape.
        made = jax.jit(zeros, out_shardings=[policies[i].where for i in parts])()
        for i, array in zip(parts, made, strict=True):
            found[i] = array
    return found


def _kind(policy: Policy, accumulated: Policy) -> Kind:
    if accumulated is policy:
        return Kind.WHOLE
    return Kind.ROWS if accumulated.cut is None else Kind.SLICES


def _dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """That of the sums: many small terms in half precision would lose what they add up to."""
    half = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < np.dtype(np.float32).itemsize
    return np.dtype(np.float32) if half else dtype


def _given_here(variable: Variable, grad: Numeric, op: ReduceOp | None, kind: Kind, context: Context) -> Any:
    """The share of one replica of a compiled program in its part of a sum."""
    mesh = context.strategy.extended.mesh
    if mesh.size == 1 or kind is Kind.WHOLE:
        return variable.policy.admit(grad)
    array, op, idle = _contribution(grad, op, context)
    if op is None:  # reduced already: one replica adds it for all
        array = jnp.where(lax.axis_index(AXIS) == 0, array, jnp.zeros_like(array))
    else:
        (array,), count = contributions([array], op, mesh.size, idle)
        array = divided(array, count) if op is ReduceOp.MEAN else array
    return variable.policy.contributed(array)


def _reduced_here(grads: Sequence[Any], op: ReduceOp | None, context: Context) -> list[Any]:
    """Reduced gradients, in one replica's program."""
    triples = [_contribution(grad, op, context) for grad in grads]
    if triples[0][1] is None:
        return [array for array, _, _ in triples]
    mesh = context.strategy.extended.mesh
    summation = context.strategy.extended.summation(None)
    return all_reduce([array for array, _, _ in triples], triples[0][1], mesh.size, summation, triples[0][2])


def _contribution(grad: Numeric, op: ReduceOp | None, context: Context) -> tuple[Any, ReduceOp | None, tuple[int, ...]]:
    """A replica's array, how it is reduced, and which replicas are idle; in a `merge_call` plain arrays are alike."""
    if context.replica is not None:
        return jnp.asarray(grad), op, context.executor.idle
    return (grad.data, op, grad.idle) if isinstance(grad, PerReplica) else (jnp.asarray(grad), None, ())


def _given_by_all(variable: Variable, grad: Numeric, op: ReduceOp | None, kind: Kind, context: Context) -> Any:
    """The share of all replicas together in a sum, as the array of its variable."""
    mesh = context.strategy.extended.mesh
    if kind is not Kind.ROWS:
        return variable.policy.pieces(jnp.asarray(variable.policy.admit(grad)))
    if not isinstance(grad, PerReplica):
        array = jnp.asarray(grad)
        # As in a program: what is reduced already is added by the first replica for all.
        return jnp.zeros((mesh.size, *array.shape), array.dtype).at[0].set(array)
    # Each replica's gradient goes to its own row, so nothing is sent until the cycle ends.
    rows = grad.data.reshape(mesh.size, *_component_shape(grad, mesh.size))
    if grad.idle:
        mine = np.isin(np.arange(mesh.size), grad.idle).reshape(-1, *[1] * (rows.ndim - 1))
        rows = kept(rows, op or ReduceOp.SUM, jnp.broadcast_to(mine, rows.shape))
    return divided(rows, mesh.size - len(grad.idle)) if op is ReduceOp.MEAN else rows


def _reduced_by_all(values: list[Any], op: ReduceOp | None, context: Context) -> list[Any]:
    """Values of all replicas, reduced in one go."""
    if not values:
        return []
    assert op is not None
    return context.strategy.reduce(op, values, axis=None)


def _component_shape(grad: PerReplica, replicas: int) -> tuple[int, ...]:
    return () if grad.scalar else (grad.data.shape[0] // replicas, *grad.data.shape[1:])


def _whole(variable: Variable, array: Numeric, kind: Kind) -> Any:
    """The sum over the replicas, of the shape of the variable, from the stored array; rows as what is to be summed."""
    if kind is Kind.ROWS:
        mesh, shape = variable.policy.mesh, variable.shape
        assert mesh is not None
        return PerReplica(array.reshape(-1, *shape[1:]), mesh, scalar=not shape)
    return array[: variable.size].reshape(variable.shape) if kind is Kind.SLICES else jax.numpy.asarray(array)
