"""Executors of code that is being traced: a whole function, and one replica of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, Sharding

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.callers import caller
from jaxtribute._src.core.collectives import in_replica
from jaxtribute._src.core.collectives.in_replica import guarded
from jaxtribute._src.core.collectives.products import PutOff
from jaxtribute._src.core.collectives.summation import Summation
from jaxtribute._src.core.context import Context, entered
from jaxtribute._src.core.execution import standpoints
from jaxtribute._src.core.execution.executor import Executor, LocalPerReplica
from jaxtribute._src.core.execution.nests import at, is_array, map_leaves
from jaxtribute._src.core.jaxprs.core import ClosedJaxpr, current_trace, is_traced, kept_beyond, opened, recorded_in
from jaxtribute._src.core.jaxprs.making import placeholder, state_p
from jaxtribute._src.core.jaxprs.walking import with_inputs
from jaxtribute._src.core.traced_reads import traced_reads
from jaxtribute._src.core.types import Array, Function, Leaf, Nest, Numeric
from jaxtribute._src.core.values.creating import Making, check_alike
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica
from jaxtribute._src.core.values.enums import ReduceOp
from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import StrategyMixError, TraceError

if TYPE_CHECKING:
    from jaxtribute._src.core.execution.gathers import Gathers

variable_p = placeholder("jd_variable")
"""Stands for a variable's value in a traced program, until `lift` turns it into an input."""
feed_p = placeholder("jd_feed")
"""Stands for an array of a batch that a traced program draws, until `lift` turns it into an input."""


def escape_error(variable: Variable) -> TraceError:
    """The error of a write from inside a JAX transformation."""
    return TraceError(
        f"{variable.name} is assigned inside a JAX transformation (jax.jit, jax.grad, jax.vmap, lax.scan, lax.cond, "
        "...), which its new value cannot leave. HINT: use jd.function in place of jax.jit, jd.value_and_grad for "
        "jax.value_and_grad, strategy.run_steps for a lax.scan over steps, or return the value and assign it outside."
    )


def check_untraced(variable: Variable) -> None:
    """Checks that no JAX transformation is under way, from which an eager write could not get out.

    Args:
      variable: the variable that would be written, for the error.

    Raises:
      TraceError: one is.
    """
    if is_traced():
        raise escape_error(variable)


class Viewed:
    """An executor that gives variables values of its own.

    Functions that JAX keeps, such as the bodies of loops, may have read such values. Once one has, the executor has a
    view of its own, and a new one when such a value changes.
    """

    trace: Any = None
    """The trace that the executor's values are of; None for arrays."""

    def __init__(self) -> None:
        self._view: int | None = None

    def noted(self, variable: Variable) -> None:
        """Called before a read of a value of the executor's own."""
        if not kept_beyond(self.trace):
            return
        traced_reads.read.add(id(variable))
        if self._view is None:
            self._view = traced_reads.fresh()
        if contexts.show():  # the function that reads is being kept under a view that others share
            traced_reads.renew(variable)

    def changed(self, variable: Variable) -> None:
        """Called after a write."""
        if id(variable) in traced_reads.read:
            self._view = traced_reads.fresh()
            contexts.show()


class InTrace(Viewed, Executor):
    """An executor whose values are of one JAX trace."""

    def __init__(self) -> None:
        super().__init__()
        self._derived: dict[Variable, tuple[Any, Any]] = {}

    def once(self, variable: Variable, array: Numeric, make: Callable[[Any], Any]) -> Any:
        """`make(array)`, computed once in the executor's own trace, or what it was before."""
        # By the identity of the array: once the variable is written, it has another one.
        known = self._derived.get(variable)
        if known is None or known[0] is not array:
            with recorded_in(self.trace):
                known = self._derived[variable] = (array, make(array))
        return known[1]


class TracedProgram(InTrace):
    """Keeps the variables' values of a program being traced; the variables themselves stay as they are.

    The first read of a variable records a `jd_variable` in this executor's own trace, whatever inner trace
    (`jax.grad`, `lax.scan`, ...) the read happens in.
    """

    traced = True

    def __init__(self) -> None:
        super().__init__()
        self.trace: Any = current_trace()
        # Variables, and what else a program takes and gives: rows of variables, arrays of operations on them.
        self.values: dict[Any, Any] = {}
        self.inputs: list[Any] = []
        self.written: dict[Any, str | None] = {}  # with the user's lines that wrote variables last
        self.operations: list[Any] = []
        """Operations that the program sends to other processes that hold variables."""
        if traced_reads.read:
            self._view = traced_reads.fresh()

    @property
    def view(self) -> Hashable:
        """Its own, or as long as no kept function has read a variable that of all programs."""
        return self._view or traced_reads.generation or None

    def get(self, variable: Variable) -> Any:
        """The variable's value so far: a tracer."""
        if variable.policy.remote:
            variable.check_seen(self)
        return self.view_of(variable)

    def view_of(self, variable: Variable) -> Any:
        """The variable's value as far as this program knows it; of one that others hold, what it is written upon."""
        self.noted(variable)
        # The first read may come within a loop's body or inside `jax.grad`. Recorded there, the value could not leave
        # it, so it is recorded in the trace of the whole program, which encloses them all.
        if variable not in self.values:
            contexts.current().strategy.extended.check_variable(variable)
            shape = variable.policy.local_shape(variable) if self.local else variable.stored.shape
            with recorded_in(self.trace):
                self.values[variable] = variable_p.bind(shape=shape, dtype=variable.dtype, key=len(self.inputs))
            self.inputs.append(variable)
        return self.values[variable]

    def set(self, variable: Variable, value: Numeric) -> None:
        """Makes `value` the variable's value for what follows in the trace."""
        # A value of an inner trace is dead once that trace ends; kept as the variable's, it would be used after that.
        if current_trace() is not self.trace:
            raise escape_error(variable)
        self.get(variable)
        if variable.policy.remote:
            variable.replaced_in(self, value)
            return
        if not self.local and variable.policy.parameter_device is not None:
            value = state_p.bind(value)
        self.values[variable] = value
        self.written[variable] = caller()
        self.changed(variable)

    @staticmethod
    def lift(closed: ClosedJaxpr) -> ClosedJaxpr:
        """Turns what a traced program reads into inputs after its own: variables by first read, then batches drawn."""
        return lift(closed)

    def record(self, operation: Any, values: Sequence[Any], variable: Variable) -> None:
        """Notes an operation that the program sends to the process that holds a variable.

        Args:
          operation: has `parts`, as many objects as there are values: each becomes an output of the program.
          values: the operation's arrays.
          variable: named by the error.

        Raises:
          TraceError: called inside a JAX transformation, from where the values cannot get out.
        """
        # Inside `jax.grad` or a scan the values belong to an inner trace, and would leave it as leaked tracers.
        if current_trace() is not self.trace:
            raise escape_error(variable)
        self.operations.append(operation)
        for part, value in zip(operation.parts, values, strict=True):
            self.give(part, value)

    def give(self, output: Any, value: Numeric) -> None:
        """Makes `value` an output of the program, by the name of any object."""
        with recorded_in(self.trace):
            self.values[output] = jnp.asarray(value)
        self.written[output] = None

    def take(self, entry: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Makes `entry`, such as rows of a variable on servers, an input of the program; returns its value there."""
        with recorded_in(self.trace):
            value = variable_p.bind(shape=shape, dtype=dtype, key=len(self.inputs))
        self.inputs.append(entry)
        return value

    def new_values(self) -> list[Any]:
        """The values of what the program has written, in the order of `written`."""
        return at(self.values, self.written)

    def derive(self, variable: Variable, make: Callable[[Any], Any]) -> Any:
        """`make` of the variable's value so far."""
        return self.once(variable, self.get(variable), make)


_DTYPES = ("float32", "float64")
"""Shorter ones are summed in float32 where they go alone."""


class TravellingLosses:
    """The losses of one replica of a traced program: those that wait for gradients, and the totals of the others."""

    def __init__(self) -> None:
        self._waiting: list[Array] = []
        self._totals: list[tuple[Array, Array]] = []

    def add(self, loss: Leaf) -> None:
        """Adds a loss, which the next gradients that are summed take along."""
        if isinstance(loss, jax.Array) and loss.dtype in _DTYPES:
            self._waiting.append(loss)

    def sum_with(self, grads: Sequence[Array], replicas: int, summation: Summation) -> list[Array]:
        """Returns the sums of gradients over the replicas; small ones take the losses of their dtype along."""
        arrays = list(map(jnp.asarray, grads))
        # Large gradients travel alone, and a loss beside one would need a collective after all.
        shared = {array.dtype for array in arrays if 0 < array.size * array.dtype.itemsize < summation.shared_bytes}
        losses: list[Array] = []
        strong: list[Array] = []
        for loss in self._waiting:
            if loss.dtype in shared:
                losses.append(loss)
                # Given a strong type: a total must not take the dtype of what it meets, as Python's numbers do.
                strong.append(jnp.asarray(loss, loss.dtype))
        self._waiting = []
        totals = in_replica.all_reduce([*arrays, *strong], ReduceOp.SUM, replicas, summation)
        self._totals.extend(zip(losses, totals[len(arrays) :], strict=True))
        return totals[: len(arrays)]

    def totals_of(self, values: Iterable[Leaf]) -> dict[int, Array]:
        """Returns, by their numbers among the values, the sums over the replicas of losses that have travelled."""
        totals: dict[int, Array] = {}
        for number, value in enumerate(values):
            for loss, total in self._totals:
                if loss is value:
                    totals.setdefault(number, total)
        return totals


class TracedFunction(TracedProgram):
    """A whole `jd.function` that is being traced: it sees whole values, on all replicas.

    Args:
      outside: the context that the function is called in.
    """

    def __init__(self, outside: Context) -> None:
        super().__init__()
        self._outside = outside
        self.created: list[Variable] = []
        """The variables that the function has made."""
        self.mesh: ReplicaMesh | None = None
        """The replicas' devices, once the function runs something on several."""
        self.home: ReplicaMesh | None = None
        """The one device of a strategy that the function runs something on."""
        self.fed = 0
        """Number of arrays of batches that the function has drawn from iterators."""
        self.arguments: dict[int, tuple[int, Sharding | None]] = {}
        """The place and the sharding of each array the function is called with, by the id of what stands for it."""
        self.whole: set[int] = set()
        """The places of the arguments that are given to all replicas as they are."""

    def placement(self, value: jax.Array) -> Sharding | None:
        """The placement of an argument in the call that the function is traced for."""
        place, sharding = self.arguments.get(id(value), (None, None))
        if place is not None:
            self.whole.add(place)
        return sharding

    def create(self, make: Making) -> Variable:
        """Makes the variable outside the traced program; its initial value is computed of what variables hold there."""
        outside, strategy = self._outside, contexts.current().strategy
        if strategy is not outside.strategy:
            outside = Context(strategy, None, outside.executor)
        with entered(outside):
            variable = outside.executor.create(make)
        self.created.append(variable)
        return variable

    def running(self, fn: Function, mesh: ReplicaMesh | None) -> Function:
        """Notes the devices that `strategy.run` uses.

        Raises:
          StrategyMixError: those of another strategy are used already.
        """
        if mesh is None:
            return fn
        present = self.mesh or self.home or mesh
        if present != mesh:
            raise StrategyMixError(
                f"one jd.function runs on {present!r} and on {mesh!r}, but a program has one set of devices. "
                "HINT: make one jd.function for each strategy."
            )
        if mesh.size > 1:
            self.mesh = mesh
        else:
            self.home = mesh
        return fn


class TracedReplica(TracedProgram):
    """One replica of a program that is being traced: what it sees is local, and meetings are collectives.

    Args:
      mesh: the replicas' devices.
      idle: the replicas that got no data.
      uneven: whether the replicas' arrays may differ in shape.
      outer: the executor of the code around.
      made: the variables that the function has made in traces for other replicas, as they asked for them.
      gathers: the lengths of gathered arrays on all replicas, if they may differ.
    """

    local = True
    standpoint: standpoints.AcrossReplicas = standpoints.IN_REPLICA

    def __init__(
        self,
        mesh: ReplicaMesh,
        idle: tuple[int, ...],
        outer: Executor,
        made: list[tuple[Making, Variable]],
        gathers: Gathers | None,
        *,
        uneven: bool,
    ) -> None:
        super().__init__()
        self._outer, self._made, self._asked = outer, made, 0
        self._mesh, self._idle, self._uneven = mesh, idle, uneven
        self.losses: TravellingLosses = TravellingLosses()
        """The losses that travel with gradients."""
        self.gathers = gathers
        self.guesses: bool = False
        """True if the function has seen a gathered array, whose length another replica's shapes may belie."""
        self.puts_off: bool = False
        """True if sums are to be made once the program is whole."""

    @property
    def idle(self) -> tuple[int, ...]:
        """The replicas that got no data."""
        return self._idle

    def all_reduce(self, values: list[Any], op: ReduceOp, summation: Summation | None = None) -> list[Any]:
        """Returns each array reduced over the replicas, small ones in one collective."""
        summation = None if summation is None else self._put_off(summation)
        return in_replica.all_reduce(values, op, self._mesh.size, summation, self.idle)

    def all_gather(self, values: list[Any], axis: int) -> list[Any]:
        """Returns each array concatenated over the replicas."""
        self.guesses = self._uneven
        gathered = [self._gathered(value, axis) for value in values]
        return [guarded(part, ReduceOp.SUM, self.idle, self._mesh.size) for part in gathered] if self.idle else gathered

    def _gathered(self, value: Array, axis: int) -> Any:
        if not self._uneven or self.gathers is None:
            return in_replica.all_gather(value, axis)
        return in_replica.gather_uneven(value, axis, self.gathers.lengths(value.shape[axis]))

    def constrain(self, value: Array, layout: Layout, mesh: ReplicaMesh) -> Array:
        """Returns an array split over the axes within this replica, which are those of the trace."""
        return jax.lax.with_sharding_constraint(value, PartitionSpec(*layout))

    def create(self, make: Making) -> Variable:
        """Makes the variable as the code around does: one for all replicas, also those that are traced apart."""
        if self._asked == len(self._made):
            now = contexts.current()
            with entered(Context(now.strategy, None, self._outer)):
                self._made.append((make, self._outer.create(make)))
        asked, variable = self._made[self._asked]
        check_alike([asked, make], ["0", f"with other rows, the {self._asked + 1}th that it makes"])
        self._asked += 1
        return variable

    def select(self, value: Numeric, replica: int) -> Any:
        """Returns the array of replica `replica`."""
        return in_replica.from_replica(value, replica)

    def merge(self, fn: Function, args: Nest, kwargs: Nest) -> Any:
        """Runs `fn(strategy, ...)` once for all replicas: here, the same program on each of them."""
        # Imported where it is used: few programs merge.
        from jaxtribute._src.core.execution.merged import MergedReplicas

        strategy = contexts.current().strategy
        merged = MergedReplicas(self)
        # Every array counts as this replica's own, also those that are the same on all: it cannot be known here which
        # are.
        args, kwargs = map_leaves(self._wrapped, (args, kwargs))
        with entered(Context(strategy, None, merged)):
            result = fn(strategy, *args, **kwargs)
        return map_leaves(_part, result)

    def queue_loss(self, loss: Numeric) -> None:
        """Adds the loss to the next gradients that are summed; from a loop or a branch it could not get out."""
        if current_trace() is self.trace:
            self.losses.add(loss)

    def reduce_gradients(self, grads: Sequence[Any], op: ReduceOp, replicas: int, summation: Summation) -> list[Any]:
        """Returns the gradients reduced over the replicas; their sums take losses along."""
        # A total that was made in a loop or a branch could not leave it.
        if op is ReduceOp.SUM and not self.idle and current_trace() is self.trace:
            return self.losses.sum_with(grads, replicas, self._put_off(summation))
        return super().reduce_gradients(grads, op, replicas, self._put_off(summation))

    def _put_off(self, summation: Summation) -> Summation:
        """The same sum, made once it is known where the arrays come from, if that may be worth it."""
        # Only sums of the whole program, which all replicas make alike, can be put off to its end: a loop or a
        # derivative needs its sums at once.
        possible = not (self._uneven or self.idle) and current_trace() is self.trace
        if not possible or not summation.operations_per_byte:
            return summation
        self.puts_off = True
        return PutOff(summation)

    def _wrapped(self, leaf: Leaf) -> Any:
        if not is_array(leaf):
            return leaf
        return LocalPerReplica(jnp.asarray(leaf), self._mesh, jnp.ndim(leaf) == 0, idle=self.idle, uneven=self._uneven)


def _part(value: Leaf) -> Any:
    """The part of a distributed value that one replica has; all else as it is."""
    return value.data if isinstance(value, (PerReplica, Mirrored)) else value


def lift(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Turns what a traced program reads into inputs after its own: variables by first read, then batches drawn."""
    read = [eqn for eqn in opened(closed).eqns if eqn.primitive in (variable_p, feed_p)]
    # Both are recorded in one trace, as Python comes to them. Callers give the values of variables in the order of
    # `executor.inputs`, and the batches after them all.
    read.sort(key=lambda eqn: (eqn.primitive is feed_p, eqn.params["key"]))
    return with_inputs(closed, read)
