"""Operations that a traced step will send to the servers: pseudo-variables that it writes, rows that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxtribute import Variable
from jaxtribute._src.addons.parameter_servers.server.client import MOVE, Exchange
from jaxtribute.errors import TraceError
from jaxtribute.extending import TracedProgram, Tracer
from jaxtribute.typing import ArrayLike

if TYPE_CHECKING:
    from jaxtribute._src.addons.parameter_servers.variables.optimizer import RemoteOptimizer
    from jaxtribute._src.addons.parameter_servers.variables.variable import ServerVariable


class Part:
    """One array of an operation; a traced program gives its value among those of the variables that it writes."""


class Operation:
    """A change of one variable.

    Args:
      kind: as the servers know it.
      variable: the variable.
      count: how many arrays it takes.
    """

    def __init__(self, kind: str, variable: ServerVariable, count: int) -> None:
        self.kind, self.variable = kind, variable
        self.parts = tuple(Part() for _ in range(count))

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.variable.name} was written"

    def changes(self) -> Sequence[Variable]:
        """The variables that it changes."""
        return (self.variable,)

    def add_to(self, exchange: Exchange, values: Sequence[Any]) -> None:
        """Puts it into a request."""
        add_operation(exchange, self.kind, self.variable, values)


class OptimizerOperation:
    """One step of an optimizer.

    Args:
      optimizer: the optimizer.
      forms: for each of its variables 1 for a dense gradient, 2 for ids and rows.
    """

    def __init__(self, optimizer: RemoteOptimizer, forms: Sequence[int]) -> None:
        self.optimizer, self.forms = optimizer, tuple(forms)
        self.parts = tuple(Part() for _ in range(sum(forms)))

    name = "apply_gradients"

    def changes(self) -> Sequence[Variable]:
        """The variables that it changes: those of the optimizer, and its slots."""
        return (*self.optimizer.variables, *self.optimizer.slots.variables)

    @property
    def variable(self) -> ServerVariable:
        """One of its variables, by which a program that reads none knows where it is to go."""
        return self.optimizer.variables[0]

    def add_to(self, exchange: Exchange, values: Sequence[Any]) -> None:
        """Puts it into a request."""
        self.optimizer.add_to(exchange, self.forms, values)


def add_operation(exchange: Exchange, kind: str, variable: ServerVariable, values: Sequence[Any]) -> None:
    """Puts a change of one variable into a request."""
    # A move has two values, the one before and the one after, both of the whole variable.
    if len(values) == 1 or kind == MOVE:
        exchange.dense(kind, variable.layout, *values)
    else:
        exchange.scattered(kind, variable.layout, *values)


def changed_in(executor: TracedProgram, variable: object) -> bool:
    """True if a traced program has changed a variable so far."""
    return any(isinstance(op, Operation) and op.variable is variable for op in executor.operations)


class Rows:
    """Some rows of a variable as an input of a traced program; which ones, it computes itself from other inputs.

    Args:
      variable: the variable.
      shape: the shape of the ids.
      padded: True if the id -1 is no row.
    """

    def __init__(self, variable: ServerVariable, shape: tuple[int, ...], *, padded: bool = False) -> None:
        self.variable, self.ids, self.padded = variable, Part(), padded
        self.shape, self.dtype = (*shape, *variable.shape[1:]), variable.dtype


def read_rows(executor: TracedProgram, variable: ServerVariable, ids: ArrayLike, *, padded: bool = False) -> Any:
    """The rows `ids` of a variable in a traced program; with `padded` zeros for the id -1.

    Raises:
      TraceError: called inside a JAX transformation, whose ids are not known before the program runs.
    """
    trace = getattr(ids, "_trace", None)
    if isinstance(ids, Tracer) and trace is not executor.trace:
        raise TraceError(
            f"the rows of {variable.name} are looked up inside a JAX transformation (jax.jit, lax.scan, ...), so that "
            "they cannot be fetched before the step runs. HINT: call jd.nn.embedding_lookup in the step itself."
        )
    rows = Rows(variable, np.shape(ids), padded=padded)
    value = executor.take(rows, rows.shape, rows.dtype)
    executor.give(rows.ids, ids)
    return value
