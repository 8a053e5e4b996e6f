"""Eager code's variables: what it reads and writes, and steps whose writes take effect together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.context import Context
from jaxtribute._src.core.execution import standpoints
from jaxtribute._src.core.execution.executor import Executor
from jaxtribute._src.core.execution.overlay import Overlay
from jaxtribute._src.core.execution.traced import Viewed, check_untraced
from jaxtribute._src.core.jaxprs.core import kept_beyond
from jaxtribute._src.core.traced_reads import traced_reads
from jaxtribute._src.core.types import Function, Numeric
from jaxtribute._src.core.values import stored
from jaxtribute._src.core.values.placing import own
from jaxtribute._src.core.values.stored import StoredArray, lent, release, replace, set_slot, updating

if TYPE_CHECKING:
    from jaxtribute._src.core.values.creating import Making
    from jaxtribute._src.core.values.mesh import ReplicaMesh
    from jaxtribute._src.core.values.variable import Variable

R = TypeVar("R")


class Eager(Executor):
    """Reads and writes the variables themselves.

    Args:
      compiles: makes compiled functions of the replica functions that code in the executor runs; by default they run as
        Python.
    """

    standpoint: standpoints.AcrossReplicas = standpoints.PYTHON_ACROSS_REPLICAS
    compiles: Callable[[Function], Function] | None = None
    outer: Any = None
    """The trace whose own reads JAX does not keep; None if it keeps those of all."""

    def __init__(self, compiles: Callable[[Function], Function] | None = None) -> None:
        self.compiles = compiles

    def running(self, fn: Function, mesh: ReplicaMesh | None) -> Function:
        """Returns the function, compiled where the executor compiles replica functions."""
        return fn if self.compiles is None else self.compiles(fn)

    @property
    def view(self) -> Hashable:
        """None, the view of the stored values."""
        return None

    def get(self, variable: Variable) -> Any:
        """The stored global array."""
        self.noted_stored(variable)
        return variable.peek()

    def noted_stored(self, variable: Variable) -> None:
        """Called before a read of the stored array."""
        if kept_beyond(self.outer):
            traced_reads.note_stored(variable, remote=variable.policy.remote)

    def set(self, variable: Variable, value: Numeric) -> None:
        """Stores a copy of `value`, placed as the variable is."""
        check_untraced(variable)
        variable.bind(_placed(variable, value))

    def together(self, operation: Callable[[Executor], R]) -> R:
        """A step of its own for `operation`, so that nobody writes between what it reads and what it writes."""
        step = EagerStep()
        result = step.together(operation)
        step.commit()
        return result

    def derive(self, variable: Variable, make: Callable[[Any], Any]) -> Any:
        """`make` of the stored array."""
        return make(self.get(variable))

    def create(self, make: Making) -> Variable:
        """Makes the variable."""
        return make()


def _placed(variable: Variable, value: Numeric) -> jax.Array:
    """A copy of `value`, placed as the variable's array is."""
    old = variable.stored
    if isinstance(value, jax.Array) and value.committed and not old.committed:
        value = jax.device_get(value)  # the only way to an array that JAX may move
    return own(value, old.sharding if old.committed else None)


class EagerStep(Viewed, Eager):
    """Keeps what an eager step writes to itself; `commit` gives all of it to the variables at once.

    A step that fails, or that a signal cuts short, has changed nothing. Other threads see the variables as they were.
    If one has written a variable meanwhile, the step's operations on the variables (not the user's function) are
    done again on the new values: what several threads add adds up. Variables on servers are written at once.

    Args:
      uncompiled: whether the step is a `jd.function` that runs as Python.
      op_by_op: whether JAX's loops, conditions and inner jits run as Python too, one operation at a time.
    """

    uncompiled: bool
    op_by_op: bool

    def __init__(self, *, uncompiled: bool = False, op_by_op: bool = False) -> None:
        super().__init__()
        self.uncompiled, self.op_by_op = uncompiled, op_by_op
        self.resets: list[Callable[[], None]] = []
        """Called before the operations are done again, by what keeps values of its own."""
        self._slots: dict[Variable, StoredArray] = {}
        self._bases: dict[Variable, jax.Array] = {}
        self._operations: list[Callable[[], Any]] = []
        self._operating = False

    @property
    def view(self) -> Hashable:
        """The step's own, or as long as no kept function has read what it writes that of the stored values."""
        return self._view

    @contextmanager
    def compiling(self) -> Generator[None]:
        """Within it a `jd.function` is compiled, also in a step that runs as Python."""
        uncompiled, self.uncompiled = self.uncompiled, False
        try:
            yield
        finally:
            self.uncompiled = uncompiled

    def get(self, variable: Variable) -> Any:
        """The array as the step has written it, else the stored one."""
        if variable in self._slots:
            self.noted(variable)
            return self._slots[variable].peek()
        self.noted_stored(variable)
        return self._base(variable) if self._operating else variable.peek()

    def holds(self, variable: Variable) -> bool:
        """True if the step has written the variable."""
        return variable in self._slots

    def set(self, variable: Variable, value: Numeric) -> None:
        check_untraced(variable)
        if variable.policy.remote:
            super().set(variable, value)
        else:
            self.operate(lambda: self.bind(variable, _placed(variable, value)))

    def bind(self, variable: Variable, array: jax.Array) -> None:
        """Keeps an array that nobody else holds, as part of an operation."""
        self._base(variable)
        self._slots.setdefault(variable, StoredArray()).bind(array)
        self.changed(variable)

    def slot(self, variable: Variable, *, written: bool) -> StoredArray:
        """Slot in which a compiled program finds the variable's array, which it may write over if `written`."""
        if variable not in self._slots:
            if not written:
                return variable
            self.bind(variable, self._base(variable).copy())
        return self._slots[variable]

    def together(self, operation: Callable[[Executor], R]) -> R:
        """`operation` of this executor; done again, as a whole, where other threads have written what it read."""
        return self.operate(lambda: operation(self))

    def operate(self, operation: Callable[[], R]) -> R:
        """Calls `operation`, which reads and writes variables by this executor, and remembers it."""
        if self._operating:
            return operation()
        self._operating = True
        try:
            result = operation()
        finally:
            self._operating = False
        self._operations.append(operation)
        return result

    def commit(self) -> None:
        """Gives the variables what the step has written."""
        # What other threads have written meanwhile is not overwritten: the step is done again on their values, which
        # may take several turns. User code is not run again, only the operations on variables that it made.
        while not self._committed():
            operations, self._operations = self._operations, []
            self._slots, self._bases = {}, {}
            for reset in self.resets:
                reset()
            for operation in operations:
                self.operate(operation)

    def _committed(self) -> bool:
        """Binds all new arrays in one call of C; False if another thread has written one of the variables."""
        # CPython 3.13 leaves some jumps back to a loop's head out of the `with` around it: a signal that raises there
        # would leave the lock held. So no loop stands in this function itself.
        with updating:
            return self._bound()

    def _bound(self) -> bool:
        slots = self._slots
        for variable in slots:
            if variable.stored is not self._bases[variable]:
                return False
        # A value that was read while the step ran may be in the user's hands: such a variable stays lent, as it
        # is since the step began with its array.
        held = [variable for variable, slot in slots.items() if id(slot) in lent]
        for variable in slots:
            traced_reads.changed(variable)
        release(slots)
        replace(map(set_slot, slots, [slot.stored for slot in slots.values()]))
        for variable in slots.keys() - held:
            if id(variable) in lent:
                stored.recall(id(variable))
        return True

    def _base(self, variable: Variable) -> jax.Array:
        """The stored array that the operations on the variable began with."""
        if variable not in self._bases:
            self._bases[variable] = variable.peek()
        return self._bases[variable]


def stepping(call: Callable[[EagerStep], R]) -> R:
    """Calls `call` in an eager step: the one under way, or one of its own that ends with it."""
    context = contexts.current()
    executor: Any = context.executor
    while isinstance(executor, Overlay):
        executor = executor.below
    if isinstance(executor, EagerStep):
        return call(executor)
    step = EagerStep()
    executor = step if executor is context.executor else context.executor
    entries = contexts.entries()
    depth = len(entries)
    try:
        entries.append(Context(context.strategy, context.replica, executor))
        contexts.show()
        result = call(step)
    finally:
        del entries[depth:]
        contexts.show()
    step.commit()
    return result


class NotSplittable(Exception):  # noqa: N818
    """Programs of replicas that differ in shape cannot be brought together; the step must run in lockstep."""

    hint = "drop the remainder, or give all replicas as many rows"


class InnerCollective(NotSplittable):
    """A collective is inside a loop or a condition, which then must run as Python."""

    hint = "drop the remainder, or keep collectives out of loops and conditions"


class Parting(InnerCollective):
    """Replicas may go different ways, on one of which is a collective: compiled they would wait for ever."""

    hint = "all_reduce what decides, choose by jnp.where, or keep collectives out of the loop or condition"


def uncompiled(call: Callable[[Sequence[Any]], Any], reason: NotSplittable) -> Function:
    """Settles for lockstep, which is exact but slow.

    Args:
      call: the Python function of its array arguments.
      reason: why it cannot be compiled.
    """
    traced_reads.uncompiled = True

    def run(dynamic: Sequence[Any], _: EagerStep | None = None) -> Any:
        context = contexts.current()
        step = EagerStep(uncompiled=True, op_by_op=isinstance(reason, InnerCollective))
        with contexts.entered(contexts.Context(context.strategy, context.replica, step)):
            result = call(dynamic)
        step.commit()
        return result

    return run
