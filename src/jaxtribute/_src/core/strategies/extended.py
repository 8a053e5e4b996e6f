"""`StrategyExtended`: what a strategy places where. A strategy of your own subclasses it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import jax

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.collectives.cross_device_ops import CrossDeviceOps, hinted_sum
from jaxtribute._src.core.devices import device_name
from jaxtribute._src.core.execution.capture import Capture
from jaxtribute._src.core.execution.containers import refuse_distributed
from jaxtribute._src.core.execution.eager import Eager, stepping
from jaxtribute._src.core.execution.function import Function
from jaxtribute._src.core.execution.nests import ATOMS, map_leaves, reveal
from jaxtribute._src.core.execution.replica_context import ReplicaContext
from jaxtribute._src.core.jaxprs.core import is_traced, named_axis
from jaxtribute._src.core.points import RUNS
from jaxtribute._src.core.strategies.groups import ProgramLayout
from jaxtribute._src.core.strategies.older_methods import OlderExtended
from jaxtribute._src.core.strategies.operations import ExtendedOperations
from jaxtribute._src.core.types import Nest, Numeric
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica, ReplicaValues
from jaxtribute._src.core.values.enums import VariableSynchronization
from jaxtribute._src.core.values.layouts import LayoutMap
from jaxtribute._src.core.values.mesh import AXIS, Layout, ReplicaMesh, unbound
from jaxtribute._src.core.values.policies.base import Policy
from jaxtribute._src.core.values.policies.mirrored import MirroredPolicy
from jaxtribute._src.core.values.policies.on_read import OnReadPolicy
from jaxtribute._src.core.values.policies.plain import PlainPolicy
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentError, ContextError, DeviceError, StrategyMixError

if TYPE_CHECKING:
    from jaxtribute._src.core.collectives.options import CommunicationOptions
    from jaxtribute._src.core.input.agreement import Agreements
    from jaxtribute._src.core.input.options import InputContext
    from jaxtribute._src.core.strategies.base import Strategy


class StrategyExtended(ExtendedOperations, OlderExtended):
    """The plug behind a `Strategy`: devices, variable placement and how replica functions are called.

    Args:
      mesh: the device of each replica.
      cross_device_ops: how values are reduced between devices; by default what XLA does best.
      layouts: how variables that say nothing themselves lie on the devices of a replica.
      hints: hints for collectives, for calls that give none.

    Examples:
      >>> extended = jd.MirroredStrategy(2).extended
      >>> extended.worker_devices
      ('/job:localhost/replica:0/task:0/device:CPU:0', '/job:localhost/replica:0/task:0/device:CPU:1')

    Source: `tf.distribute.StrategyExtended`.
    """

    variable_kind: type[Variable] = Variable
    """Class that `jd.Variable(...)` makes in the strategy's scope."""
    _layouts: LayoutMap | None = None

    def __init__(
        self,
        mesh: ReplicaMesh,
        cross_device_ops: CrossDeviceOps | None = None,
        layouts: LayoutMap | None = None,
        hints: CommunicationOptions | None = None,
    ) -> None:
        self._mesh = mesh
        if hints is not None:
            self._hints = hints
            hinted_sum(self._cross_device_ops if cross_device_ops is None else cross_device_ops, mesh, hints)
        if cross_device_ops is not None:
            self._cross_device_ops = cross_device_ops
        if layouts is not None:
            self._layouts = layouts
        self._strategy: weakref.ref[Strategy] | None = None

    def attach(self, strategy: Strategy) -> None:
        """Tells the plug which strategy it serves; called once, by `Strategy`."""
        # Weak: the two would else hold each other, and what both hold, until Python looks for circles.
        self._strategy = weakref.ref(strategy)

    @property
    def strategy(self) -> Strategy:
        """The strategy that this object serves."""
        strategy = self._strategy() if self._strategy is not None else None
        assert strategy is not None
        return strategy

    @property
    def mesh(self) -> ReplicaMesh:
        """The device of each replica."""
        return self._mesh

    def on(self, mesh: ReplicaMesh) -> Self:
        """Makes a plug that stores variables as this one does, over other replicas: to ask for policies there."""
        made = copy.copy(self)
        made._mesh = mesh
        return made

    @property
    def home(self) -> ReplicaMesh | None:
        """The devices that programs without any placed argument must run on; None for JAX's default."""
        return self.mesh

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """TensorFlow's names of this worker's devices that run replicas.

        Source: `tf.distribute.StrategyExtended.worker_devices`.
        """
        return tuple(map(device_name, self.mesh.local_devices))

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """TensorFlow's names of the devices that hold variables.

        Source: `tf.distribute.StrategyExtended.parameter_devices`.
        """
        return self.worker_devices

    def variable_policy(self, synchronization: VariableSynchronization) -> tuple[Policy, VariableSynchronization]:
        """Storage of a new variable, and the synchronization that AUTO stands for.

        Raises:
          ArgumentError: a synchronization that this strategy cannot give.
        """
        if self.mesh.size == 1:
            # One copy is in step with itself: it gives every synchronization that is asked for.
            return PlainPolicy(self.home), synchronization
        if synchronization is VariableSynchronization.NONE:
            raise ArgumentError(
                f"{type(self.strategy).__name__} keeps a copy of each variable on {self.mesh.size} devices, which "
                "VariableSynchronization.NONE rules out. HINT: use AUTO, ON_WRITE or ON_READ."
            )
        if synchronization is VariableSynchronization.ON_READ:
            return OnReadPolicy(self.mesh), synchronization
        return MirroredPolicy(self.mesh), VariableSynchronization.ON_WRITE

    @property
    def layouts(self) -> LayoutMap | None:
        """The layouts of variables on the devices of a replica, as the strategy was told, or has chosen."""
        return self._layouts

    @cached_property
    def copied_to_all(self) -> set[int]:
        """Ids of its variables that lie on no device for good, and that programs have copied to several devices."""
        return set()

    @cached_property
    def _looks(self) -> tuple[Callable[..., Callable[[], None]], ...]:
        """Functions that look at what replicas will run; asked for once, as every eager step calls them."""
        return RUNS.entries()

    def layout_of(self, variable: Variable) -> Layout:
        """The layout of a new variable that says none itself; the empty one leaves it whole in each replica."""
        if self._layouts is None or not self.mesh.group:
            return ()
        if isinstance(self._layouts, ProgramLayout):
            return self._layouts.layout_of(variable, self.mesh)
        return self._layouts.find(variable.name.removesuffix(":0"))

    def lay_out(self, capture: Capture, leaves: Sequence[Any]) -> None:
        """Lays out variables by a traced program that uses them, where the layout is automatic."""
        if self._layouts is None or not self.mesh.group:
            return
        if isinstance(self._layouts, ProgramLayout):
            self._layouts.lay_out(self.mesh, capture, leaves)
        # Before a program that trains there may be others, which make the variables.
        elif names := [v.name.removesuffix(":0") for v in capture.executor.written if v.trainable and not v.derived]:
            self._layouts.warn_of_unused(names)

    def remote_optimizer(self, transform: Any, variables: Nest) -> Any:
        """Updater of variables that other processes hold, with its slots; None if `Optimizer` updates them."""

    def call_for_each_replica(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Nest = None) -> Any:
        """Calls `fn` on each replica; what `Strategy.run` does once its arguments are checked.

        Raises:
          ContextError: called inside a replica function.
          StrategyMixError: called inside another strategy's scope, or with another strategy's values.

        Source: `tf.distribute.StrategyExtended.call_for_each_replica`.
        """
        contexts.require_cross_replica(self.strategy, "extended.call_for_each_replica")
        kwargs = dict(kwargs or {})
        executor = contexts.current().executor
        fn = executor.running(fn, self.home)
        if not executor.traced and not isinstance(fn, Function) and self.mesh.group and self.mesh.peers is not None:
            # A replica's operations would exchange parts between its devices, one by one and unordered: Gloo mixes
            # them up.
            raise ContextError(
                f"strategy.run outside a compiled function, on replicas of {self.mesh.group_size} devices over several "
                "workers. HINT: call strategy.run in a function decorated by @jd.function."
            )
        leaves = reveal((args, kwargs), (ReplicaValues,))
        for leaf in leaves:
            if not isinstance(leaf, ATOMS):
                refuse_distributed(leaf)
        if self.mesh.size == 1:
            return self._call_alone(fn, args, kwargs)
        # Here and not in a function for each leaf, as every eager step passes.
        for leaf in leaves:
            if isinstance(leaf, (PerReplica, Mirrored)) and leaf.mesh != self.mesh:
                raise _mixed(leaf, self.strategy)
            if isinstance(leaf, Variable):
                self.check_variable(leaf)
            if isinstance(leaf, jax.Array) and (where := executor.placement(leaf)) is not None:
                self.mesh.check_whole(leaf.shape, where)
        if isinstance(fn, Function) and not executor.traced:
            return fn.run_on(self.strategy)(*args, **kwargs)
        looks_again = [look(fn, (args, kwargs), self.mesh.size) for look in self._looks]
        if not executor.traced:
            results = self.run_eagerly(fn, args, kwargs)
        else:
            # Imported where it is used: many programs need none of it, and starts should be quick.
            from jaxtribute._src.core.execution import compiled

            results = compiled.run(self.strategy, self.mesh, fn, args, kwargs, executor)
        for look_again in looks_again:
            look_again()
        return results

    def run_eagerly(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Calls `fn` on each replica if no program is traced."""
        if self.mesh.described:
            raise DeviceError(
                f"strategy.run on {self.mesh.size} described device(s) outside a compiled function: nothing runs. "
                "HINT: call strategy.run in a function decorated by @jd.function."
            )
        if not is_traced():
            from jaxtribute._src.core.execution import lockstep

            return lockstep.run(self.strategy, self.mesh, fn, args, kwargs)
        from jaxtribute._src.core.execution import compiled

        executor = contexts.current().executor
        return compiled.run_transformed(self.strategy, self.mesh, fn, args, kwargs, executor)

    def regroup(self, results: Sequence[Any], *, always: bool = False) -> Any:
        """Joins what the local replicas returned, nest by nest, into distributed values.

        Where all replicas returned the same object it stays as it is, unless `always`.
        """
        from jaxtribute._src.core.execution.regrouping import regroup

        return regroup(results, self.mesh, always=always)

    def input_context(self) -> InputContext:
        """The context that this worker's input pipeline is given."""
        from jaxtribute._src.core.input.options import InputContext

        return InputContext(num_replicas_in_sync=self.mesh.size)

    def input_agreements(self) -> Agreements | None:
        """Agreement of the workers, for one dataset, on who has data left; None for a single worker."""
        return None

    def _call_alone(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        executor = contexts.current().executor
        # One replica costs nothing over plain JAX: no program of replicas, no threads.
        args, kwargs = map_leaves(_only, (tuple(args), kwargs))
        context = ReplicaContext(self.strategy, self._only_id())
        with contexts.entered(contexts.Context(self.strategy, context, executor)):
            if executor.traced:
                with named_axis(AXIS, 1):  # the program that is captured gives it this length
                    return fn(*args, **kwargs)
            if isinstance(fn, Function):
                return fn(*args, **kwargs)
            if self.home is None:
                return stepping(lambda _: fn(*args, **kwargs))
            args, kwargs = map_leaves(unbound, (args, kwargs))  # to meet arrays from around the function
            with jax.default_device(self.home.devices[0]):
                return stepping(lambda _: fn(*args, **kwargs))

    def _only_id(self) -> Any:
        return jax.numpy.int32(0)

    def check_variable(self, variable: Variable) -> None:
        """Checks that a replica function of this strategy may use `variable`.

        Raises:
          StrategyMixError: it was made in another strategy's scope.
        """
        mesh = variable.policy.mesh
        if mesh is not None and mesh != self.mesh:
            raise StrategyMixError(
                f"{variable.name} was created in the scope of {variable.distribute_strategy!r} and is used by "
                f"{self.strategy!r}. HINT: create variables and run steps under one strategy."
            )

    def components_of(self, value: Numeric, *, usable: bool = False) -> Any:
        """`value`, a variable as what it holds on each replica, once it is known to belong to these replicas.

        Args:
          value: a value or variable.
          usable: whether a variable must be one that a replica function may use, as `check_variable` says.

        Raises:
          StrategyMixError: it is another strategy's.
        """
        if isinstance(value, Variable):
            if usable:
                # No look at the replicas behind it: outside every scope a variable has those of its own strategy.
                self.check_variable(value)
                return value.distributed()
            value = value.distributed()
        if isinstance(value, (PerReplica, Mirrored)) and value.mesh != self.mesh:
            raise _mixed(value, self.strategy)
        return value


def _mixed(value: PerReplica | Mirrored, strategy: Strategy) -> StrategyMixError:
    """The error that a value on other replicas was given to a strategy."""
    return StrategyMixError(
        f"a {type(value).__name__} value of {value.mesh.size} replica(s) on {value.mesh!r} was given to {strategy!r} "
        f"on {strategy.extended.mesh!r}. HINT: use the strategy that made the value."
    )


def _only(value: Numeric) -> Any:
    """The component of a value that one replica sees."""
    return value.values[0] if isinstance(value, (PerReplica, Mirrored)) else value


EAGER = Eager()
"""The executor of code that no `jd.function` traces."""
