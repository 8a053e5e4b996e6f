"""`Standpoint`: the meaning of a read or a write of a variable, seen from where the code runs.

A policy knows how a value is stored, and nothing of who asks. An executor has one of these, which applies the policy's
functions of arrays to what the executor holds:

    AcrossReplicas          code of all replicas that is being traced: it has the whole stored array
    PythonAcrossReplicas    such code that runs as Python, whose results meet arrays of other devices
    InReplica               one replica of a traced program: it has its part of the stored array
    PythonInReplica         one replica that runs as Python: the values have been brought to its device
    InMergeCall             a `merge_call` in a traced program: code of all replicas, which has one replica's part

They keep nothing, and are told the executor: an `Overlay` has the standpoint of the executor below, and its own values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.collectives import in_replica
from jaxtribute._src.core.collectives.cross_replica import joined_gradients
from jaxtribute._src.core.collectives.options import EXACT
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.types import Array, Numeric
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica, ReplicaValues
from jaxtribute._src.core.values.enums import ReduceOp, VariableAggregation, reduction_of
from jaxtribute._src.core.values.mesh import everywhere, unbound
from jaxtribute._src.core.values.policies.base import Policy, Update, Writes, check_aggregation, coerce
from jaxtribute.errors import ArgumentError, ContextError

if TYPE_CHECKING:
    from jaxtribute._src.core.execution.executor import Executor
    from jaxtribute._src.core.strategies.base import Strategy
    from jaxtribute._src.core.values.variable import Variable

Apply = Callable[[list[Any], ReduceOp | None, Sequence[Any]], None]
"""Updates variables by gradients that are still to be reduced as said."""
Derivable = tuple[Any, Callable[[Any], tuple[Any, Any]]]
"""A value to differentiate by; and a function of it that gives what the differentiated function sees: the variable's
array, and what `Executor.derive` makes of it, if anything."""


class AcrossReplicas:
    """Code of all replicas, in a program that is being traced."""

    def read(self, executor: Executor, variable: Variable, as_replica: bool) -> Any:
        """Returns the variable's value, of the variable's shape."""
        return variable.policy.combined(executor.get(variable), variable)

    def whole(self, executor: Executor, variable: Variable) -> Any:
        """Returns the value where it is stored, for an update."""
        return variable.policy.value(executor.get(variable))

    def store(self, executor: Executor, variable: Variable, value: Numeric) -> None:
        """Replaces what `whole` returns."""
        executor.set(variable, variable.policy.pieces(value))

    def write(self, executor: Executor, variable: Variable, value: Numeric, update: Update, as_replica: bool) -> None:
        """Applies a write of what the user gave."""
        amount = self.given(executor, variable, value, update, as_replica)

        # The old value is read within: where another thread has written it meanwhile, the write is done again.
        def write(executor: Executor) -> None:
            old = None if update is Update.ASSIGN else self.whole(executor, variable)
            self.store(executor, variable, update.apply(old, amount))

        executor.together(write)

    def given(self, executor: Executor, variable: Variable, value: Numeric, update: Update, as_replica: bool) -> Any:
        """Returns what a write amounts to, in the form of `whole`."""
        policy = variable.policy
        # A replica that was entered alone, `with ReplicaContext(...)`: the executor refuses to speak for the others.
        if as_replica and policy.writes is Writes.TOGETHER and _several(policy):
            return _combined(executor, variable, value, update)
        return policy.written_by_all(value, update, variable, policy.stored_shape(variable.shape))

    def derivable(self, executor: Executor, variable: Variable, as_replica: bool) -> Derivable:
        """Returns a value to differentiate by, to get the gradient that `gradient` then takes."""
        if variable.policy.writes is Writes.IN_TURN:
            return self.read(executor, variable, as_replica), _as_array
        return executor.get(variable), _as_array

    def gradient(self, gradient: Numeric, variable: Variable) -> Any:
        """Returns the gradient for the value that `read` gives, from that for what `derivable` has given."""
        return variable.policy.gradient(gradient, variable)

    def distributed(self, executor: Executor, variable: Variable) -> Any:
        """Returns the variable as a value with one component a replica, if it has several."""
        policy = variable.policy
        if policy.by_component and policy.mesh is not None:
            parts, scalar = policy.components(executor.get(variable), variable)
            return executor.component(parts, policy.mesh, scalar=scalar)
        value = self.whole(executor, variable)
        return Mirrored(value, policy.mesh) if policy.mirrored and policy.mesh is not None else value

    def apply(
        self, executor: Executor, grads: list[Any], op: ReduceOp | None, update: Apply, others: Sequence[Any] = ()
    ) -> None:
        """Calls `update(grads, op, others)` where an optimizer's update is computed: once, for all replicas.

        Args:
          executor: the executor of the code that calls.
          grads: gradients as the code that calls has them.
          op: how they are reduced; None if they are.
          update: the update.
          others: what it takes besides, which is not reduced.
        """
        if contexts.current().replica is not None:
            check_alone()
        update(grads, op, others)

    def reducible(self, strategy: Strategy, grads: list[Any], op: ReduceOp | None) -> tuple[list[Any], ReduceOp | None]:
        """Reduces gradients over the replicas, if the code has those of all.

        Args:
          strategy: the strategy of the replicas.
          grads: the gradients; those that are not `PerReplica` are taken as reduced.
          op: how the others are reduced.

        Returns:
          The gradients; and how they are still to be reduced, where the code is one replica's.

        Raises:
          ArgumentError: `PerReplica` gradients without a way to reduce them.
        """
        own = [grad for grad in grads if isinstance(grad, PerReplica)]
        if not own:
            return grads, None
        if op is None:
            raise ArgumentError(
                f"reduce_op=None with a gradient that differs between {strategy.num_replicas_in_sync} replicas. "
                "HINT: pass reduce_op='SUM' or 'MEAN', or reduce the gradients before."
            )
        totals = iter(strategy.reduce(op, own, axis=None))
        return [next(totals) if isinstance(grad, PerReplica) else grad for grad in grads], None


class PythonAcrossReplicas(AcrossReplicas):
    """Code of all replicas that runs as Python: what it reads it will compute with beside arrays of other devices."""

    def read(self, executor: Executor, variable: Variable, as_replica: bool) -> Any:
        """Returns the value, on all devices of this process's replicas; to the only replica bound to no device."""
        policy = variable.policy
        value = _reachable(policy.read_by_python(executor.get(variable), variable), policy)
        return unbound(value) if as_replica else value

    def whole(self, executor: Executor, variable: Variable) -> Any:
        """Returns the value where it is stored; pieces are brought together."""
        policy, array = variable.policy, executor.get(variable)
        return array if policy.cut is None else _reachable(policy.read_by_python(array, variable), policy)


class InReplica(AcrossReplicas):
    """One replica of a traced program."""

    def read(self, executor: Executor, variable: Variable, as_replica: bool) -> Any:
        """Returns the value as the replica sees it."""
        return variable.policy.component(self.whole(executor, variable), variable)

    def whole(self, executor: Executor, variable: Variable) -> Any:
        """Returns what the replica updates: its part, or the value that the parts of all make up."""
        join = variable.policy.join
        return executor.get(variable) if join is None else executor.derive(variable, join)

    def store(self, executor: Executor, variable: Variable, value: Numeric) -> None:
        """Keeps the replica's part of what `whole` returns."""
        executor.set(variable, variable.policy.own_piece(value, variable))

    def given(self, executor: Executor, variable: Variable, value: Numeric, update: Update, as_replica: bool) -> Any:
        """Returns what the replicas' writes amount to, as the policy says."""
        policy = variable.policy
        if policy.writes is Writes.OWN:
            return policy.written_by_one(value, variable)
        if policy.writes is Writes.TOGETHER:
            # Of one replica nothing is combined, and its value is brought to where the variable lies.
            return policy.admit(_combined(executor, variable, value, update))
        # There is one copy, and each replica writes it in turn: what they add adds up, the last assignment stays.
        value = coerce(variable, value)
        if update is Update.ASSIGN:
            return executor.select(value, contexts.current().strategy.num_replicas_in_sync - 1)
        return executor.all_reduce([value], ReduceOp.SUM)[0].astype(value.dtype)

    def derivable(self, executor: Executor, variable: Variable, as_replica: bool) -> Derivable:
        """Returns the part; of joined parts the value, or zeros beside it where the backward pass shall join again."""
        policy = variable.policy
        if policy.join is None:
            return super().derivable(executor, variable, as_replica)
        join, piece = policy.join, executor.get(variable)
        if not policy.regathers or executor.differentiating:
            return self.whole(executor, variable), lambda value: (piece, value)
        # The gradient of `join` is that of all replicas, summed up. The zeros get this replica's own.
        probe = jnp.zeros(variable.shape, variable.dtype)
        return probe, lambda value: (piece, join(piece, value))

    def gradient(self, gradient: Numeric, variable: Variable) -> Any:
        """Returns the gradient for the value as the replica sees it."""
        return variable.policy.component(gradient, variable)

    def apply(
        self, executor: Executor, grads: list[Any], op: ReduceOp | None, update: Apply, others: Sequence[Any] = ()
    ) -> None:
        """Calls `update` here: each replica's program computes it."""
        update(grads, op, others)

    def reducible(self, strategy: Strategy, grads: list[Any], op: ReduceOp | None) -> tuple[list[Any], ReduceOp | None]:
        """Leaves the gradients as they are: how they are reduced depends on how their variables are stored."""
        return grads, op if strategy.extended.mesh.size > 1 else None


class PythonInReplica(InReplica):
    """One replica that runs as Python, on its own device: what it sees of a variable is whole there."""

    def whole(self, executor: Executor, variable: Variable) -> Any:
        """Returns this replica's copy; of a variable of no strategy such that it can meet arrays of other devices."""
        array = executor.get(variable)
        return unbound(array) if variable.policy.mesh is None else array

    def store(self, executor: Executor, variable: Variable, value: Numeric) -> None:
        """Replaces this replica's copy."""
        executor.set(variable, value)

    def write(self, executor: Executor, variable: Variable, value: Numeric, update: Update, as_replica: bool) -> None:
        """Applies a write; one array on a device of its own is written once for all replicas, where it lies."""
        policy = variable.policy
        # A tracer cannot be handed to a `merge_call`, but an all-reduce can be differentiated.
        if policy.parameter_device is None or isinstance(value, Tracer):
            super().write(executor, variable, value, update, as_replica)
            return
        if _several(policy):
            check_aggregation(variable, value, update, _replicas(policy))
        executor.merge(_write_merged, (variable, coerce(variable, value), update), {})

    def given(self, executor: Executor, variable: Variable, value: Numeric, update: Update, as_replica: bool) -> Any:
        """Returns what the replica writes: they run one by one, so they write a single copy in turn by themselves."""
        if variable.policy.writes is Writes.IN_TURN:
            return coerce(variable, value)
        return super().given(executor, variable, value, update, as_replica)

    def derivable(self, executor: Executor, variable: Variable, as_replica: bool) -> Derivable:
        """Returns this replica's copy."""
        return self.whole(executor, variable), _as_array

    def apply(
        self, executor: Executor, grads: list[Any], op: ReduceOp | None, update: Apply, others: Sequence[Any] = ()
    ) -> None:
        """Calls `update` once, with the gradients that all replicas brought."""

        def apply_gradients(strategy: Strategy, grads: list[Any], others: Sequence[Any]) -> None:
            update(joined_gradients(grads, op, strategy.extended.mesh), op, others)

        executor.merge(apply_gradients, (grads, others), {})


class InMergeCall(InReplica):
    """A `merge_call` among traced replicas: it reads and writes for all of them, and has the part of one."""

    def read(self, executor: Executor, variable: Variable, as_replica: bool) -> Any:
        policy = variable.policy
        if policy.form == "rows":
            return policy.combined(in_replica.all_gather(executor.get(variable), 0), variable)
        return self.whole(executor, variable)

    def given(self, executor: Executor, variable: Variable, value: Numeric, update: Update, as_replica: bool) -> Any:
        """Returns the one value that is written for all replicas, in the form of a part."""
        policy = variable.policy
        return policy.written_by_all(value, update, variable, policy.local_shape(variable))

    def reducible(self, strategy: Strategy, grads: list[Any], op: ReduceOp | None) -> tuple[list[Any], ReduceOp | None]:
        """Reduces the gradients of all replicas, of which it has one replica's."""
        return AcrossReplicas.reducible(self, strategy, grads, op)


ACROSS_REPLICAS = AcrossReplicas()
PYTHON_ACROSS_REPLICAS = PythonAcrossReplicas()
IN_REPLICA = InReplica()
PYTHON_IN_REPLICA = PythonInReplica()
IN_MERGE_CALL = InMergeCall()


@contextmanager
def seen_from(executor: Executor, standpoint: AcrossReplicas) -> Generator[None]:
    """Gives an executor another standpoint for a while: code of all replicas that does something for each of them.

    Args:
      executor: the executor of the code within.
      standpoint: how it sees variables.
    """
    before, executor.standpoint = executor.standpoint, standpoint
    try:
        yield
    finally:
        executor.standpoint = before


def check_alone() -> None:
    """Checks that the replica whose code runs has no others.

    Raises:
      ContextError: it has: `with ReplicaContext(strategy, 1)`.
    """
    strategy = contexts.current().strategy
    if strategy.num_replicas_in_sync > 1:
        raise ContextError(
            f"a replica of {strategy!r} was entered alone, and no other replica runs that could take part. "
            "HINT: reduce, gather and merge in the function passed to strategy.run."
        )


def _as_array(value: Array) -> tuple[Any, Any]:
    return value, None


def _replicas(policy: Policy) -> int:
    return 1 if policy.mesh is None else policy.mesh.size


def _several(policy: Policy) -> bool:
    return _replicas(policy) > 1


def _reachable(value: Numeric, policy: Policy) -> Any:
    """The value on devices of this process: between workers, the devices of a replica each hold parts of it."""
    if policy.layout and policy.mesh is not None and policy.mesh.peers is not None:
        return everywhere(value, policy.mesh)
    return value


def _combined(executor: Executor, variable: Variable, value: Numeric, update: Update) -> Any:
    """The one value that the replicas' writes come to.

    Raises:
      VariableError: several replicas write, and the aggregation is NONE, or SUM of a Python number.
    """
    if not _several(variable.policy):
        return coerce(variable, value)
    check_aggregation(variable, value, update, _replicas(variable.policy))
    value = coerce(variable, value)
    if variable.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return executor.select(value, 0)
    op = ReduceOp.from_variable_aggregation(variable.aggregation)
    return executor.all_reduce([value], op, contexts.current().strategy.extended.summation(EXACT))[0]


def _write_merged(strategy: Strategy, variable: Variable, value: Numeric, update: Update) -> None:
    """Applies one write of what all replicas gave, in cross-replica context."""
    how = variable.aggregation
    if how is VariableAggregation.ONLY_FIRST_REPLICA:
        value = value.values[0] if isinstance(value, ReplicaValues) else value
    elif isinstance(value, ReplicaValues):
        value = strategy.reduce(ReduceOp.from_variable_aggregation(how), value, axis=None)
    elif how is not VariableAggregation.NONE:
        # The same array on all replicas comes out of a `merge_call` as one, and each of them has written it.
        reduction = reduction_of(ReduceOp.from_variable_aggregation(how))
        value = reduction.of_equals(value, strategy.num_replicas_in_sync)
    executor = contexts.current().executor
    executor.standpoint.write(executor, variable, value, update, as_replica=False)
