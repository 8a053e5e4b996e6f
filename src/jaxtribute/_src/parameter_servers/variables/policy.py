"""Meaning of reads and writes of a variable on servers in each context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.context import Context
from jaxtribute._src.execution.overlay import Overlay
from jaxtribute._src.execution.row_gradients import overlaid_rows
from jaxtribute._src.execution.traced import TracedProgram, check_untraced
from jaxtribute._src.parameter_servers.variables.operations import Operation, changed_in, read_rows, record, updated_in
from jaxtribute._src.parameter_servers.variables.program import ServerProgram
from jaxtribute._src.types import ArrayLike, Leaf
from jaxtribute._src.values.mesh import ReplicaMesh
from jaxtribute._src.values.policies.base import Policy, Update, coerce
from jaxtribute.errors import VariableError

if TYPE_CHECKING:
    from jaxtribute._src.parameter_servers.variables.access import Access

_KINDS = {Update.ASSIGN: "assign", Update.ADD: "add", Update.SUB: "sub"}


class ServerPolicy(Policy):
    """Values on servers: reads pull, writes send operations.

    Args:
      mesh: the device that this process computes on.
      access: how this process reaches the servers.
    """

    remote = True
    program: ClassVar[Any] = ServerProgram

    def __init__(self, mesh: ReplicaMesh, access: Access) -> None:
        self._mesh = mesh
        self.access = access

    @property
    def mesh(self) -> ReplicaMesh:
        """The device that this process computes on."""
        return self._mesh

    def place(self, value: ArrayLike) -> jax.Array:
        """The value, on its way to the servers."""
        return jnp.asarray(value)

    def read(self, variable: Leaf, context: Context) -> Any:
        """The servers' value, or the step's present view of it."""
        if isinstance(context.executor, TracedProgram) and updated_in(context.executor, variable):
            raise VariableError(
                f"{variable.name} is read after apply_gradients in the same step; its parameter server has the new "
                "value, the worker has not. HINT: read it before, or in the next step."
            )
        return context.executor.get(variable)

    def write(self, variable: Leaf, value: ArrayLike, update: Update, context: Context) -> None:
        """Sends the servers the operation, rather than a new value."""
        executor = context.executor
        if not (type(value) is np.ndarray and (value.dtype, value.shape) == (variable.dtype, variable.shape)):
            value = coerce(variable, value)  # which copies; an array that fits is on its way before this returns
        if isinstance(executor, TracedProgram):
            record(executor, Operation(_KINDS[update], variable, 1), [value], variable)
            executor.values[variable] = update.apply(executor.get(variable), value)
            executor.changed(variable)
        elif isinstance(executor, Overlay):
            executor.set(variable, update.apply(executor.get(variable), value))
        else:
            check_untraced(variable)
            self.access.change(_KINDS[update], variable, [value])

    def changed(self, executor: TracedProgram, variable: Leaf, value: ArrayLike) -> None:
        """A traced program that gives a variable another value sends the difference, which others' writes survive."""
        # Other workers push to the variable meanwhile: written whole, this value would undo what they did.
        old = executor.get(variable)
        if variable.dtype == np.bool_:
            record(executor, Operation("assign", variable, 1), [value], variable)
        else:
            record(executor, Operation("add", variable, 1), [value - old], variable)
        executor.values[variable] = value
        executor.changed(variable)

    def lookup(self, variable: Leaf, ids: ArrayLike, context: Context) -> Any:
        """The rows `ids`, which alone travel."""
        executor = context.executor
        if isinstance(executor, Overlay):
            return overlaid_rows(executor, variable, ids, lambda below: self.rows_in(below, variable, ids))
        return self.rows_in(executor, variable, ids)

    def rows_in(self, executor: Any, variable: Leaf, ids: ArrayLike) -> Any:
        """The rows as a executor sees them."""
        if not isinstance(executor, TracedProgram):
            return jnp.asarray(self.access.rows(variable.layout, np.asarray(ids)))
        if changed_in(executor, variable):
            return jnp.take(executor.values[variable], jnp.asarray(ids), axis=0)
        return read_rows(executor, variable, ids)
