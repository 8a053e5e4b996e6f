"""Gradients added up over several calls, to be reduced and applied once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.core.collectives.in_replica import all_reduce, contributions
from jaxtribute._src.core.context import Context
from jaxtribute._src.core.optimizer.gradients import names_of
from jaxtribute._src.core.optimizer.slots import slot_names
from jaxtribute._src.core.optimizer.updates import Slice, replaced_at
from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.distributed import PerReplica
from jaxtribute._src.core.values.enums import ReduceOp, VariableAggregation, VariableSynchronization, reduction_of
from jaxtribute._src.core.values.mesh import AXIS
from jaxtribute._src.core.values.policies.base import Policy
from jaxtribute._src.core.values.reductions import Reduction
from jaxtribute._src.core.values.variable import Variable

if TYPE_CHECKING:
    from jaxtribute._src.core.strategies.base import Strategy


class Kind(Enum):
    """Storage of the sum of a variable's gradients."""

    ROWS = "one sum a replica, of its own gradients, reduced when the cycle ends"
    SLICES = "one slice a replica, of reduced gradients, where whole ones would take the memory that slices save"
    WHOLE = "one sum, of reduced gradients, where one device keeps all variables"


@dataclass(frozen=True)
class Sum:
    """The gradients of one variable of the optimizer, added up.

    Attributes:
      variable: holds the sum.
      kind: how the sum is kept.
      dtype: that of the gradients, which the sum may exceed.
    """

    variable: Variable
    kind: Kind
    dtype: np.dtype[Any]

    def shared(self, array: Numeric) -> Any:
        """The value of the variable's shape in the stored array; of rows all replicas', which are still to be added."""
        variable = self.variable
        if self.kind is Kind.ROWS:
            mesh, shape = variable.policy.mesh, variable.shape
            assert mesh is not None
            return PerReplica(array.reshape(-1, *shape[1:]), mesh, scalar=not shape)
        return array[: variable.size].reshape(variable.shape) if self.kind is Kind.SLICES else jnp.asarray(array)

    def own(self, array: Numeric) -> Any:
        """One replica's part of the sum, in its program."""
        cut = self.variable.policy.cut
        return array.reshape(self.variable.shape) if cut is None else Slice(array, cut)


class _Adding(ABC):
    """Adding of gradients to sums, as the code that runs has the gradients.

    Args:
      context: the context in force.
      op: how gradients are reduced; None if they are.
    """

    def __init__(self, context: Context, op: ReduceOp | None) -> None:
        self.context, self.op = context, op
        self.strategy = context.strategy
        self.mesh = context.strategy.extended.mesh

    @abstractmethod
    def is_early(self, entry: Sum, grad: Numeric) -> bool:
        """True if a gradient is reduced in every call, as the sum is one of reduced gradients."""

    @abstractmethod
    def reduced(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Reduces gradients over the replicas, all in one go."""

    @abstractmethod
    def share(self, entry: Sum, grad: Numeric) -> Any:
        """The share of a gradient in a sum, of the sum's array."""

    @abstractmethod
    def gradient(self, entry: Sum, array: Numeric) -> Any:
        """The gradient of a whole cycle in a sum's array."""


class _InProgram(_Adding):
    """One replica of a compiled program, in a `merge_call` too: it has its own gradients, and its parts of sums."""

    def is_early(self, entry: Sum, grad: Numeric) -> bool:
        """True for a sum on one device, which no replica has a part of."""
        return entry.kind is Kind.WHOLE and self.mesh.size > 1

    def reduced(self, grads: Sequence[Any]) -> Sequence[Any]:
        arrays: list[Any] = []
        op, idle = None, ()
        for grad in grads:
            array, op, idle = self._contribution(grad)
            arrays.append(array)
        if op is None:
            return arrays
        return all_reduce(arrays, op, self.mesh.size, self.strategy.extended.summation(None), idle)

    def share(self, entry: Sum, grad: Numeric) -> Any:
        policy = entry.variable.policy
        if self.mesh.size == 1 or entry.kind is Kind.WHOLE:
            return policy.admit(grad)
        array, op, idle = self._contribution(grad)
        if op is None:  # reduced already: one replica adds it for all
            array = jnp.where(lax.axis_index(AXIS) == 0, array, jnp.zeros_like(array))
        else:
            (array,), count = contributions([array], op, self.mesh.size, idle)
            array = reduction_of(op).finish(array, count)
        return policy.contributed(array)

    def gradient(self, entry: Sum, array: Numeric) -> Any:
        """The replica's part: the optimizer reduces it with the update."""
        return entry.own(array)

    def _contribution(self, grad: Numeric) -> tuple[Any, ReduceOp | None, tuple[int, ...]]:
        """A replica's array, how it is reduced, and which replicas are idle."""
        if self.context.replica is not None:
            return jnp.asarray(grad), self.op, self.context.executor.idle
        # In a `merge_call` plain arrays are alike on all replicas.
        return (grad.data, self.op, grad.idle) if isinstance(grad, PerReplica) else (jnp.asarray(grad), None, ())


class _ForAll(_Adding):
    """Code of all replicas: it has their gradients as `PerReplica` or reduced, and the whole sums."""

    def is_early(self, entry: Sum, grad: Numeric) -> bool:
        """True for gradients of all replicas, unless the sum has a row for each."""
        return entry.kind is not Kind.ROWS and isinstance(grad, PerReplica)

    def reduced(self, grads: Sequence[Any]) -> Sequence[Any]:
        assert self.op is not None
        return self.strategy.reduce(self.op, list(grads), axis=None)

    def share(self, entry: Sum, grad: Numeric) -> Any:
        mesh, policy = self.mesh, entry.variable.policy
        if entry.kind is not Kind.ROWS:
            return policy.pieces(jnp.asarray(policy.admit(grad)))
        if not isinstance(grad, PerReplica):
            array = jnp.asarray(grad)
            # As in a program: what is reduced already is added by the first replica for all.
            return jnp.zeros((mesh.size, *array.shape), array.dtype).at[0].set(array)
        reduction = reduction_of(self.op or ReduceOp.SUM)
        # Each replica's gradient goes to its own row, so nothing is sent until the cycle ends.
        shape = () if grad.scalar else (grad.data.shape[0] // mesh.size, *grad.data.shape[1:])
        rows = reduction.kept_rows(grad.data.reshape(mesh.size, *shape), grad.idle)
        return reduction.finish(rows, mesh.size - len(grad.idle))

    def gradient(self, entry: Sum, array: Numeric) -> Any:
        """The sum over the replicas, once rows are added up."""
        return entry.shared(array)


@dataclass(frozen=True)
class Accumulation:
    """The sums of a cycle so far, as variables.

    Attributes:
      steps: how many calls make a cycle.
      reduction: what a cycle applies of the calls' gradients: their mean or their sum.
      sums: one for each variable of the optimizer, and one of the losses, if the transformation looks at them.
      count: how many calls the cycle has had.
      of_values: whether there is one of the losses.
    """

    steps: int
    reduction: Reduction
    sums: tuple[Sum, ...]
    count: Variable
    of_values: bool

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The state that a checkpoint must keep."""
        return (*(entry.variable for entry in self.sums), self.count)

    @property
    def in_parts(self) -> bool:
        """True if no sum is kept whole on one device, so that a cycle's gradients are still to be reduced."""
        return all(entry.kind is not Kind.WHOLE for entry in self.sums)

    def added(self, grads: Sequence[Any], op: ReduceOp | None, context: Context) -> list[Any]:
        """The sums' arrays after one more call.

        Args:
          grads: one for each variable, then the loss if it is added up: this replica's in a compiled
            program, elsewhere all replicas' (`PerReplica`) or reduced ones.
          op: how they are reduced, or None if they are.
          context: the context in force; not that of a replica that runs eagerly.
        """
        adding = _adding(context, op)
        early = [place for place, grad in enumerate(grads) if adding.is_early(self.sums[place], grad)]
        grads = replaced_at(early, grads, adding.reduced)
        sums: list[Any] = []
        for entry, grad in zip(self.sums, grads, strict=False):
            total = context.executor.get(entry.variable)
            # The sum may be wider than the gradients: see `_dtype`.
            sums.append(total + adding.share(entry, grad).astype(total.dtype))
        return sums

    def cycle(self, arrays: Sequence[Any], context: Context) -> list[Any]:
        """The gradients of a whole cycle: a replica's own in a compiled program (slices as such), elsewhere reduced."""
        adding = _adding(context, ReduceOp.SUM)
        gradients: list[Any] = []
        for entry, array in zip(self.sums, arrays, strict=False):
            # In the sums' own dtype; only the result is rounded to that of the gradients.
            gradients.append(adding.gradient(entry, self.reduction.finish(array, self.steps).astype(entry.dtype)))
        rows = [place for place, grad in enumerate(gradients) if isinstance(grad, PerReplica)]
        return replaced_at(rows, gradients, adding.reduced)


def _adding(context: Context, op: ReduceOp | None) -> _Adding:
    return _InProgram(context, op) if context.executor.local else _ForAll(context, op)


class _Wanted(NamedTuple):
    """A sum to make: its name, the shape and dtype of what is added up, and how that is stored."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: Policy


def make_accumulation(
    strategy: Strategy, variables: Sequence[Variable], steps: int, op: ReduceOp, *, value: bool
) -> Accumulation:
    """Makes the sums of `variables`, zero, and the count.

    Args:
      strategy: that of the variables.
      variables: those that gradients are given for.
      steps: how many calls make a cycle.
      op: how a cycle combines the gradients of its calls.
      value: whether there is a sum of losses besides, after the others.
    """
    plain, _ = strategy.extended.variable_policy(VariableSynchronization.ON_WRITE)
    names = slot_names([_FIELD] * len(variables), names_of(variables))
    wanted = [
        _Wanted(name, entry.shape, entry.dtype, entry.policy) for name, entry in zip(names, variables, strict=True)
    ]
    if value:
        real = np.dtype(jnp.result_type(float))
        wanted.append(_Wanted("accumulated_value", (), real, plain.fitted((), real)))
    # Each variable's policy says how its sums are kept: no device should hold more of them than it must.
    policies = [entry.stored.accumulated() for entry in wanted]
    sums: list[Sum] = []
    for entry, policy, array in zip(wanted, policies, _zeros(wanted, policies), strict=True):
        made = Variable.with_policy(
            array,
            policy,
            name=entry.name,
            strategy=strategy,
            shape=entry.shape if policy.split else None,
            aggregation=VariableAggregation.SUM,
        )
        sums.append(Sum(made, _kind(entry.stored, policy), entry.dtype))
    for entry, owner in zip(sums, variables, strict=False):
        entry.variable.follows = owner, None
    # The same on all replicas: every one of them counts every call.
    policy = plain.fitted((), np.dtype(np.int32))
    count = Variable.with_policy(np.zeros((), np.int32), policy, name="accumulated_calls", strategy=strategy)
    return Accumulation(steps, reduction_of(op), tuple(sums), count, value)


_FIELD = (jax.tree_util.GetAttrKey("accumulated"),)


def _zeros(wanted: Sequence[_Wanted], policies: Sequence[Policy]) -> list[Any]:
    """The first sums, those of several replicas made where they stay: no device ever holds those of others."""
    totals: list[Any] = []
    shapes: dict[int, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for place, (entry, policy) in enumerate(zip(wanted, policies, strict=True)):
        dtype = _dtype(entry.dtype)
        totals.append(np.zeros(entry.shape, dtype))
        if policy.split:
            shapes[place] = policy.stored_shape(entry.shape), dtype

    def zeros() -> list[Any]:
        return [jnp.zeros(shape, dtype) for shape, dtype in shapes.values()]

    if shapes:
        # One program for all: a call for each variable would be compiled for each shape.
        made = jax.jit(zeros, out_shardings=[policies[place].where for place in shapes])()
        for place, array in zip(shapes, made, strict=True):
            totals[place] = array
    return totals


def _kind(policy: Policy, accumulated: Policy) -> Kind:
    if accumulated is policy:
        return Kind.WHOLE
    return Kind.ROWS if accumulated.cut is None else Kind.SLICES


def _dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """That of the sums: many small terms in half precision would lose what they add up to."""
    kinds = (dtype, np.dtype(np.float32)) if jnp.issubdtype(dtype, jnp.floating) else (dtype,)
    return max(kinds, key=lambda kind: kind.itemsize)
