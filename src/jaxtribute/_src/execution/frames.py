"""Access of code to the variables' arrays while a program is traced, and inside `jd.grad`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from jaxtribute._src import context as contexts
from jaxtribute._src.execution.executor import Executor
from jaxtribute._src.jaxprs.core import ClosedJaxpr, current_trace, is_traced, kept_beyond, opened, recorded_in
from jaxtribute._src.jaxprs.making import placeholder, state_p
from jaxtribute._src.jaxprs.walking import with_inputs
from jaxtribute._src.traced_reads import traced_reads
from jaxtribute._src.values.variable import Variable
from jaxtribute.errors import TraceError

if TYPE_CHECKING:
    from jaxtribute._src.collectives.summation import Summation
    from jaxtribute._src.strategies.base import Strategy
    from jaxtribute._src.types import Array, Function, Leaf, Nest
    from jaxtribute._src.values.distributed import PerReplica
    from jaxtribute._src.values.enums import ReduceOp
    from jaxtribute._src.values.mesh import ReplicaMesh

variable_p = placeholder("jd_variable")
"""Stands for a variable's value in a traced program, until `lift` turns it into an input."""
feed_p = placeholder("jd_feed")
"""Stands for an array of a batch that a traced program draws, until `lift` turns it into an input."""


def escape_error(variable: Variable) -> TraceError:
    """The error of a write from inside a JAX transformation."""
    return TraceError(
        f"{variable.name} is assigned inside a JAX transformation (jax.jit, jax.grad, jax.vmap, lax.scan, lax.cond, "
        "...), which its new value cannot leave. HINT: use jd.function in place of jax.jit, jd.value_and_grad in place "
        "of jax.value_and_grad, or return the value and assign it outside."
    )


def check_untraced(variable: Variable) -> None:
    """Checks that no JAX transformation is under way, from which an eager write could not get out.

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


class _InTrace(Viewed, Executor):
    """An executor whose values are of one JAX trace."""

    def __init__(self) -> None:
        super().__init__()
        self._derived: dict[Variable, tuple[Any, Any]] = {}

    def once(self, variable: Variable, array: Any, make: Callable[[Any], Any]) -> Any:
        """`make(array)`, computed once in the executor's own trace, or what it was before."""
        known = self._derived.get(variable)
        if known is None or known[0] is not array:
            with recorded_in(self.trace):
                known = self._derived[variable] = (array, make(array))
        return known[1]


class TracedProgram(_InTrace):
    """Keeps the variables' values of a program being traced; the variables themselves stay as they are.

    The first read of a variable records a `jd_variable` in this executor's own trace, whatever inner trace
    (`jax.grad`, `lax.scan`, ...) the read happens in.
    """

    traced = True

    def __init__(self) -> None:
        super().__init__()
        self.trace = current_trace()
        # Variables, and what else a program takes and gives: rows of variables, arrays of operations on them.
        self.values: dict[Any, Any] = {}
        self.inputs: list[Any] = []
        self.written: dict[Any, None] = {}
        self.created: list[Variable] = []
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
        self.noted(variable)
        if variable not in self.values:
            contexts.current().strategy.extended.check_variable(variable)
            shape = variable.policy.local_shape(variable) if self.local else variable.stored.shape
            with recorded_in(self.trace):
                self.values[variable] = variable_p.bind(shape=shape, dtype=variable.dtype, key=len(self.inputs))
            self.inputs.append(variable)
        return self.values[variable]

    def set(self, variable: Variable, value: Any) -> None:
        """Makes `value` the variable's value for what follows in the trace."""
        if current_trace() is not self.trace:
            raise escape_error(variable)
        self.get(variable)
        if variable.policy.remote:
            variable.policy.changed(self, variable, value)
            return
        if not self.local and variable.policy.parameter_device is not None:
            value = state_p.bind(value)
        self.values[variable] = value
        self.written[variable] = None
        self.changed(variable)

    def derive(self, variable: Variable, make: Callable[[Any], Any]) -> Any:
        """`make` of the variable's value so far."""
        return self.once(variable, self.get(variable), make)

    def create(self, make: Callable[[], Variable]) -> Variable:
        """Makes the variable, outside the traced program."""
        variable = make()
        self.created.append(variable)
        return variable


class Overlay(_InTrace):
    """Gives some variables other values while a function is differentiated, and keeps what it writes.

    Args:
      below: the executor that the function would otherwise use.
      values: the variables and, for each, the array that the function is to see, and what is made of it, if anything.
    """

    differentiating = True

    def __init__(self, below: Executor, values: dict[Variable, tuple[Any, Any]]) -> None:
        super().__init__()
        self.local, self.traced = below.local, below.traced
        self.trace = current_trace()
        self.below = below
        self._values = {variable: array for variable, (array, _) in values.items()}
        self._derived.update({variable: pair for variable, pair in values.items() if pair[1] is not None})
        self.written: dict[Variable, Any] = {}
        seen = [variable for variable in values if id(variable) in traced_reads.read]
        if seen or (self.traced and traced_reads.read):
            self._view = traced_reads.fresh()
        if seen and not self.traced:
            traced_reads.repeated(seen[0])

    @property
    def view(self) -> Hashable:
        """Its own, or as long as no kept function has read an overlaid variable that of the executor below."""
        return self._view or self.below.view

    def get(self, variable: Variable) -> Any:
        """The overlaid value, or that of the executor below."""
        self.noted(variable)
        return self._values[variable] if variable in self._values else self.below.get(variable)

    def overlays(self, variable: Variable) -> bool:
        """True if the function sees another value of `variable`."""
        return variable in self._values

    def set(self, variable: Variable, value: Any) -> None:
        """Keeps `value` for what follows; the differentiated function hands it out at its end."""
        if current_trace() is not self.trace:
            raise escape_error(variable)
        self._values[variable] = value
        self.written[variable] = value
        self.changed(variable)

    def derive(self, variable: Variable, make: Callable[[Any], Any]) -> Any:
        """`make` of the overlaid value, or what the executor below makes of its own."""
        if variable not in self._values:
            return self.below.derive(variable, make)
        self.noted(variable)
        return self.once(variable, self._values[variable], make)

    def create(self, make: Callable[[], Variable]) -> Variable:
        """Makes the variable as the executor below does."""
        return self.below.create(make)

    @property
    def idle(self) -> tuple[int, ...]:
        """The replicas that got no data."""
        return self.below.idle

    def all_reduce(self, values: list[Array], op: ReduceOp, summation: Summation | None = None) -> list[Array]:
        """Reduces as the executor below does."""
        return self.below.all_reduce(values, op, summation)

    def all_gather(self, values: list[Array], axis: int) -> list[Array]:
        """Gathers as the executor below does."""
        return self.below.all_gather(values, axis)

    def select(self, value: Array, replica: int) -> Array:
        """Selects as the executor below does."""
        return self.below.select(value, replica)

    def merge(self, fn: Function, args: Nest, kwargs: Nest) -> Nest:
        """Merges as the executor below does; where there is one replica, what is merged sees the overlaid values."""
        return self.below.merge(fn, args, kwargs) if self.local else super().merge(fn, args, kwargs)

    def reduce(
        self, strategy: Strategy, values: Sequence[Leaf], op: ReduceOp, axis: int | tuple[int, ...] | None
    ) -> list[Array]:
        """Reduces as the executor below does."""
        return self.below.reduce(strategy, values, op, axis)

    def gather(self, value: Leaf, axis: int) -> Array:
        """Gathers as the executor below does."""
        return self.below.gather(value, axis)

    def rows_of_all(self, rows: Array) -> Array:
        """Gathers rows as the executor below does."""
        return self.below.rows_of_all(rows)

    def component(self, value: Array, mesh: ReplicaMesh, *, scalar: bool) -> PerReplica:
        """Wraps a value as the executor below does."""
        return self.below.component(value, mesh, scalar=scalar)


def lift(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Turns what a traced program reads into inputs behind its own: variables by first read, then batches drawn."""
    read = [eqn for eqn in opened(closed).eqns if eqn.primitive in (variable_p, feed_p)]
    read.sort(key=lambda eqn: (eqn.primitive is feed_p, eqn.params["key"]))
    return with_inputs(closed, read)
