"""`Overlay`: the executor of a function that is being differentiated by variables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.context import Context, entered
from jaxtribute._src.core.execution.executor import Executor
from jaxtribute._src.core.execution.traced import InTrace, escape_error
from jaxtribute._src.core.jaxprs.core import current_trace
from jaxtribute._src.core.traced_reads import traced_reads
from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.variable import Variable

if TYPE_CHECKING:
    from jaxtribute._src.core.collectives.summation import Summation
    from jaxtribute._src.core.strategies.base import Strategy
    from jaxtribute._src.core.types import Array, Function, Leaf, Nest
    from jaxtribute._src.core.values.creating import Making
    from jaxtribute._src.core.values.distributed import PerReplica
    from jaxtribute._src.core.values.enums import ReduceOp
    from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh


class RowsNeeded(Exception):  # noqa: N818
    """A function that is being differentiated looks up rows of a variable that it is differentiated by."""


class Overlay(InTrace):
    """Gives some variables other values while a function is differentiated, and keeps what it writes.

    Args:
      below: the executor that the function would otherwise use.
      values: the variables and, for each, the array that the function is to see, and what is made of it, if anything.
    """

    differentiating = True

    local: bool
    traced: bool
    standpoint: Any

    def __init__(self, below: Executor, values: dict[Variable, tuple[Any, Any]]) -> None:
        super().__init__()
        self.local, self.traced, self.standpoint = below.local, below.traced, below.standpoint
        self.eager_run: Any = below.eager_run
        self.trace: Any = current_trace()
        self.below = below
        self._values: dict[Variable, Any] = {}
        self.written: dict[Variable, Any] = {}
        self.unread = set(values)
        """The variables whose value the function has not read."""
        seen: list[Variable] = []
        for variable, pair in values.items():
            self._values[variable] = pair[0]
            if pair[1] is not None:
                self._derived[variable] = pair
            if id(variable) in traced_reads.read:
                seen.append(variable)
        # A function that JAX keeps has read one of these variables: it must not be used again with the values of this
        # overlay.
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
        if variable not in self._values:
            return self.below.get(variable)
        self.unread.discard(variable)
        return self._values[variable]

    def overlays(self, variable: Variable) -> bool:
        """True if the function sees another value of `variable`."""
        return variable in self._values

    def set(self, variable: Variable, value: Numeric) -> None:
        """Keeps `value` for what follows; the differentiated function hands it out at its end."""
        # As in `TracedProgram.set`: a value of an inner trace is dead once that trace ends.
        if current_trace() is not self.trace:
            raise escape_error(variable)
        self._values[variable] = value
        self.written[variable] = value
        self.changed(variable)

    def derive(self, variable: Variable, make: Callable[[Any], Any]) -> Any:
        """`make` of the overlaid value, or what the executor below makes of its own."""
        if variable not in self._values:
            return self.below.derive(variable, make)
        self.unread.discard(variable)
        self.noted(variable)
        return self.once(variable, self._values[variable], make)

    def create(self, make: Making) -> Variable:
        """Makes the variable as the executor below does, whose values its initial value is computed from."""
        now = contexts.current()
        with entered(Context(now.strategy, now.replica, self.below)):
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

    def constrain(self, value: Array, layout: Layout, mesh: ReplicaMesh) -> Array:
        """Lays out as the executor below does."""
        return self.below.constrain(value, layout, mesh)

    def select(self, value: Array, replica: int) -> Array:
        """Selects as the executor below does."""
        return self.below.select(value, replica)

    def merge(self, fn: Function, args: Nest, kwargs: Nest) -> Nest:
        """Merges as the executor below does; if there is one replica, what is merged sees the overlaid values."""
        return self.below.merge(fn, args, kwargs) if self.local else super().merge(fn, args, kwargs)

    def reduce(
        self, strategy: Strategy, values: Sequence[Leaf], op: ReduceOp, axis: int | tuple[int, ...] | None
    ) -> list[Array]:
        """Reduces as the executor below does."""
        return self.below.reduce(strategy, values, op, axis)

    def gather(self, value: Leaf, axis: int) -> Array:
        """Gathers as the executor below does."""
        return self.below.gather(value, axis)

    def component(self, value: Array, mesh: ReplicaMesh, *, scalar: bool) -> PerReplica:
        """Wraps a value as the executor below does."""
        return self.below.component(value, mesh, scalar=scalar)
