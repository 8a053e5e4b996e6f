"""Operations of `strategy.extended` on values and variables, for all strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.collectives import in_replica
from jaxtribute._src.core.collectives.cross_device_ops import (
    CrossDeviceOps,
    DefaultCrossDeviceOps,
    ReductionToOneDevice,
    hinted_sum,
)
from jaxtribute._src.core.collectives.cross_replica import reduce_value
from jaxtribute._src.core.collectives.destinations import parse_destinations, put
from jaxtribute._src.core.collectives.options import EXACT
from jaxtribute._src.core.execution import standpoints
from jaxtribute._src.core.execution.executor import LocalPerReplica
from jaxtribute._src.core.execution.nests import flatten, map_leaves
from jaxtribute._src.core.execution.replica_context import ReplicaContext
from jaxtribute._src.core.types import Device, Function, Leaf, Nest, Numeric
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica, ReplicaValues
from jaxtribute._src.core.values.enums import ReduceOp, ReduceOpLike
from jaxtribute._src.core.values.mesh import AXIS
from jaxtribute._src.core.values.operators import operand
from jaxtribute._src.core.values.sparse import refuse_sparse
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ContextError, StrategyMixError, VariableError

if TYPE_CHECKING:
    from jaxtribute._src.core.collectives.options import CommunicationOptions
    from jaxtribute._src.core.collectives.summation import Summation
    from jaxtribute._src.core.strategies.base import Strategy
    from jaxtribute._src.core.values.mesh import ReplicaMesh


class ExtendedOperations(ABC):
    """Reductions, broadcasts and updates with destinations; a part of `StrategyExtended`."""

    _cross_device_ops: CrossDeviceOps = DefaultCrossDeviceOps()
    _hints: CommunicationOptions | None = None
    """The strategy's, which the hints of a call come before."""

    @property
    @abstractmethod
    def mesh(self) -> ReplicaMesh:
        """The device of each replica."""

    @property
    @abstractmethod
    def strategy(self) -> Strategy:
        """The strategy that this object serves."""

    @abstractmethod
    def call_for_each_replica(self, fn: Function, args: Sequence[Any] = (), kwargs: Nest = None) -> Any:
        """Calls `fn` on each replica."""

    @abstractmethod
    def components_of(self, value: Numeric, *, usable: bool = False) -> Any:
        """`value`, a variable as what it holds on each replica, once it is known to belong to these replicas."""

    @property
    @abstractmethod
    def parameter_devices(self) -> tuple[str, ...]:
        """TensorFlow's names of the devices that hold variables."""

    def summation(self, options: CommunicationOptions | None) -> Summation:
        """Way in which `ReplicaContext.all_reduce` adds up; the cross-device operations decide."""
        return hinted_sum(self._cross_device_ops, self.mesh, self._hinted(options))

    @property
    def wire(self) -> str | None:
        """Type in which large float32 arrays travel by the strategy's hints; None if they travel as they are."""
        wire = None if self._hints is None else self._hints.wire
        return None if wire == EXACT.wire else wire

    def _hinted(self, options: CommunicationOptions | None) -> CommunicationOptions | None:
        return self._hints if options is None else options.within(self._hints)

    @property
    def experimental_require_static_shapes(self) -> bool:
        """True if replicas need arrays of fixed shapes: False, as a new shape is compiled for when it comes.

        Source: `tf.distribute.StrategyExtended.experimental_require_static_shapes`.
        """
        return False

    def reduce_to(
        self, reduce_op: ReduceOpLike, value: Numeric, destinations: Leaf, options: CommunicationOptions | None = None
    ) -> Any:
        """Reduces a value over the replicas and puts the result where it is wanted, in cross-replica context.

        Args:
          reduce_op: `ReduceOp.SUM`, `ReduceOp.MEAN` or their names.
          value: what `run` or `merge_call` gave, or a variable; a plain array counts as the same on all replicas.
          destinations: a variable, distributed value or array, whose devices are meant, or one device's name.
          options: hints.

        Returns:
          A `Mirrored` value where the destination has several devices, else an array.

        Raises:
          ArgumentError: an unknown operation, or SUM of a plain array over several replicas.
          ArgumentTypeError: destinations that are none of these, such as a list.
          ContextError: called inside a replica function.
          StrategyMixError: called inside the scope of another strategy.

        Source: `tf.distribute.StrategyExtended.reduce_to`.
        """
        return self.batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def batch_reduce_to(
        self,
        reduce_op: ReduceOpLike,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Reduces several values at once, so that small ones travel together; see `reduce_to`.

        Args:
          reduce_op: as there.
          value_destination_pairs: pairs of a value and its destinations.
          options: hints, such as the size of a pack.

        Returns:
          The results in the order of the pairs.

        Source: `tf.distribute.StrategyExtended.batch_reduce_to`.
        """
        op, options = ReduceOp.parse(reduce_op), self._hinted(options)
        contexts.require_cross_replica(self.strategy, "extended.batch_reduce_to")
        results: list[Any] = []
        pairs: list[tuple[Any, Any]] = []
        for value, destinations in value_destination_pairs:
            refuse_sparse(value, "a reduction or broadcast")
            pairs.append((self.components_of(value), destinations))
        # One call for all values of an algorithm, in which small ones share a collective. None stands for a compiled
        # `merge_call`: there the values are one replica's, and its program adds up.
        together: dict[CrossDeviceOps | None, list[int]] = {}
        for place, (value, destinations) in enumerate(pairs):
            target = parse_destinations(destinations, self.mesh)
            results.append(None)
            if isinstance(value, LocalPerReplica):
                together.setdefault(None, []).append(place)
            elif isinstance(value, ReplicaValues):
                # What is wanted on the host alone needs no all-reduce, which would leave a copy on every device.
                on_cpu = isinstance(target, Device) and target.platform == "cpu"
                ops = _TO_ONE_DEVICE if on_cpu else self._cross_device_ops
                together.setdefault(ops, []).append(place)
            else:
                results[place] = put(reduce_value(value, op, None, self.mesh), target)
        for ops, places in together.items():
            chosen = [pairs[place] for place in places]
            # One device that adds up takes the arrays as they are.
            hints = EXACT if ops is _TO_ONE_DEVICE else options
            reduced = self._reduce_local(chosen, op, hints) if ops is None else ops.batch_reduce(op, chosen, hints)
            for place, result in zip(places, reduced, strict=True):
                results[place] = result
        return results

    def broadcast_to(self, tensor: Numeric, destinations: Leaf) -> Any:
        """Copies an array to the destinations, in cross-replica context.

        Args:
          tensor: an array or number.
          destinations: as for `reduce_to`.

        Returns:
          A `Mirrored` value where the destination has several devices, else an array.

        Source: `tf.distribute.StrategyExtended.broadcast_to`.
        """
        contexts.require_cross_replica(self.strategy, "extended.broadcast_to")
        # In a compiled `merge_call` this is one replica's program: the array is where it is wanted.
        if contexts.current().executor.local:
            return operand(tensor)
        return put(jax.numpy.asarray(operand(tensor)), parse_destinations(destinations, self.mesh))

    def update(
        self, var: Variable, fn: Function, args: Sequence[Any] = (), kwargs: Nest = None, group: bool = True
    ) -> Any:
        """Calls `fn(var, *args, **kwargs)` where the variable is.

        In cross-replica context it is called once, and what it assigns reaches every copy; for an ON_READ variable it
        is called for each replica's own value. In replica context all replicas wait for each other first.

        Args:
          var: a variable of this strategy.
          fn: the update, which assigns to its first argument.
          args: its further arguments: mirrored values, arrays, or for an ON_READ variable per-replica values.
          kwargs: its keyword arguments, likewise.
          group: False to get the result's components instead.

        Returns:
          What `fn` returns; with `group=False` a tuple with one component a local replica.

        Raises:
          VariableError: per-replica arguments for a variable that has one value for all replicas.
          StrategyMixError: a variable of another strategy, or called inside another's scope.

        Source: `tf.distribute.StrategyExtended.update`.
        """
        kwargs = dict(kwargs or {})
        context = contexts.current()
        if context.replica is not None and context.strategy is self.strategy:

            def merged(_: Strategy, *args: Nest, **kwargs: Nest) -> Any:
                return self._update(var, fn, args, kwargs)

            result = context.replica.merge_call(merged, tuple(args), kwargs)
        else:
            contexts.require_cross_replica(self.strategy, "extended.update")
            result = self._update(var, fn, tuple(args), kwargs)
        return result if group else self.strategy.experimental_local_results(result)

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Variable) -> Generator[None]:
        """Makes the variables created in the block lie where another variable of this strategy lies.

        A strategy places all its variables alike, so this only checks that the variable is one of them.

        Raises:
          ArgumentError: it is no variable that was made in this strategy's scope.
          ContextError: entered outside the strategy's scope.

        Source: `tf.distribute.StrategyExtended.colocate_vars_with`.
        """
        if not self.variable_created_in_scope(colocate_with_variable):
            raise ArgumentError(
                f"{colocate_with_variable.name} was not created in the scope of {self.strategy!r}. "
                "HINT: create it in that scope, or use its own strategy."
            )
        if contexts.current().strategy is not self.strategy:
            raise ContextError(
                f"colocate_vars_with was entered outside the scope of {self.strategy!r}. "
                "HINT: enter strategy.scope() first."
            )
        yield

    def variable_created_in_scope(self, v: Variable) -> bool:
        """Returns whether `v` was made in this strategy's scope.

        Source: `tf.distribute.StrategyExtended.variable_created_in_scope`.
        """
        if not isinstance(v, Variable):
            raise ArgumentTypeError(f"{v!r} is no variable. HINT: pass a jd.Variable that was made in a scope.")
        return v.distribute_strategy is self.strategy

    def value_container(self, value: Numeric) -> Any:
        """Returns what a component belongs to: `value` itself, as components here are plain arrays.

        Source: `tf.distribute.StrategyExtended.value_container`.
        """
        return value

    def non_slot_devices(self, var_list: Sequence[Variable]) -> tuple[str, ...]:
        """Returns TensorFlow's names of the devices for an optimizer's state that belongs to no single variable.

        Source: `tf.compat.v1.distribute.StrategyExtended.non_slot_devices`.
        """
        for variable in var_list:
            if not self.variable_created_in_scope(variable):
                raise StrategyMixError(
                    f"{variable.name} was not created in the scope of {self.strategy!r}. HINT: pass its own variables."
                )
        return tuple(self.parameter_devices)

    def read_var(self, v: Variable) -> Any:
        """Returns the variable's value as the current context sees it.

        Source: `tf.compat.v1.distribute.StrategyExtended.read_var`.
        """
        return v.read_value()

    def _update(self, var: Variable, fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`update` in cross-replica context."""
        if not self.variable_created_in_scope(var) and var.policy.mesh is not None:
            raise StrategyMixError(
                f"{var.name} belongs to {var.distribute_strategy!r}, not to {self.strategy!r}. "
                "HINT: call its own strategy's extended.update."
            )
        # Values that differ from replica to replica, the variable's own or those of arguments, take one call for each.
        # The combination that means nothing, such arguments for a variable of one value, is refused there.
        each = [leaf for leaf in flatten((args, kwargs))[0] if isinstance(leaf, PerReplica)]
        if self.mesh.size > 1 and (each or not var.policy.shared):
            return self._update_each(var, fn, args, kwargs)
        args, kwargs = map_leaves(lambda leaf: var.policy.admit(_whole(leaf)), (args, kwargs))
        device = var.policy.parameter_device
        # Outside every replica, wherever the caller is: what `fn` assigns is meant for all copies.
        context = contexts.Context(self.strategy, None, contexts.current().executor)
        # Numbers that `fn` makes must meet the variable's array where it is.
        with contexts.entered(context), nullcontext() if device is None else jax.default_device(device):
            return fn(var, *args, **kwargs)

    def _update_each(self, var: Variable, fn: Function, args: Nest, kwargs: Nest) -> Any:
        """`update` of each replica's component."""
        if var.policy.shared:
            raise VariableError(
                f"update({var.name}) got a PerReplica argument with {self.mesh.size} components for a variable that "
                "has one value. HINT: reduce it first: strategy.extended.reduce_to('SUM', value, variable)."
            )
        executor = contexts.current().executor
        if not executor.local:
            return self.call_for_each_replica(fn, (var, *args), kwargs)
        args, kwargs = map_leaves(_whole, (args, kwargs))
        # One program stands for all replicas, so its number is known to the devices alone: their place on the axis.
        replica = ReplicaContext(self.strategy, lax.axis_index(AXIS))
        context = contexts.Context(self.strategy, replica, executor)
        with contexts.entered(context), standpoints.seen_from(executor, standpoints.IN_REPLICA):
            return fn(var, *args, **kwargs)

    def _reduce_local(
        self, pairs: Sequence[tuple[Any, Any]], op: ReduceOp, options: CommunicationOptions | None
    ) -> list[Any]:
        """`batch_reduce_to` in a compiled `merge_call`, where values are this replica's components."""
        # Values of one `merge_call` come from one run, so they have the same idle replicas.
        values = [value.data for value, _ in pairs]
        return in_replica.all_reduce(values, op, self.mesh.size, self.summation(options), pairs[0][0].idle)


_TO_ONE_DEVICE = ReductionToOneDevice()


def _whole(value: Numeric) -> Any:
    """The array of a value that is the same on all replicas, or this one's component."""
    if isinstance(value, (Mirrored, LocalPerReplica)):
        return value.data
    return value.values[0] if isinstance(value, PerReplica) else value
