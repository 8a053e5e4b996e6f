"""Gradients with respect to some rows of a variable: what `jd.nn.embedding_lookup` looked up, and nothing else.

A function is differentiated with respect to whole variables until it looks up rows of one that another process holds,
or if one of them is a table, which lies over the replicas. It is then traced once to learn which rows it looks up, and
differentiated with respect to those rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxtribute._src.core.execution.nests import at
from jaxtribute._src.core.execution.overlay import Overlay, RowsNeeded
from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.scatter import IndexedSlices
from jaxtribute._src.core.values.variable import Variable

if TYPE_CHECKING:
    from jaxtribute._src.core.execution.executor import Executor
    from jaxtribute._src.core.execution.standpoints import Derivable


class Lookups:
    """The rows that a differentiated function looks up.

    Args:
      variables: those that it is differentiated by and of which rows may be looked up.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        self.variables = list(variables)
        self.whole: set[Variable] = set()
        """Variables that are read as a whole besides."""
        self.found: list[tuple[Variable, Any]] = []
        """The variables and shapes of rows, in order."""
        self.moves: list[Any] | None = None
        """Zeros added to the rows, by whose cotangents the gradients are found; None while the rows are learnt."""
        self.ids: list[Any] = []

    def restart(self) -> None:
        """Begins a trace of the function."""
        self.ids = []

    def by_rows(self) -> list[Variable]:
        """The variables whose gradients are rows."""
        looked_up = set(map(itemgetter(0), self.found)) - self.whole
        return [variable for variable in self.variables if variable in looked_up or variable.policy.by_rows]


class RowsOverlay(Overlay):
    """An overlay under which rows of some variables are looked up.

    Args:
      below: the executor below.
      values: the other variables' values, as `Overlay` takes them.
      lookups: the variables, and what becomes known of them.
    """

    def __init__(self, below: Executor, values: dict[Variable, tuple[Any, Any]], lookups: Lookups) -> None:
        super().__init__(below, values)
        self.lookups = lookups

    def get(self, variable: Variable) -> Any:
        """Gives the overlaid value; notes a variable that is read as a whole."""
        if self.lookups.moves is None and variable in self.lookups.variables:
            self.lookups.whole.add(variable)
        return super().get(variable)

    def rows(self, variable: Variable, ids: Numeric, read: Callable[[Any], Any]) -> Any:
        """The rows `ids`, which `read` gets from the executor below."""
        self.noted(variable)
        lookups = self.lookups
        if lookups.moves is None:
            # To learn which rows are looked up their shape is enough: none is fetched from another process.
            lookups.found.append((variable, (*jnp.shape(ids), *variable.shape[1:])))
            return jnp.zeros(lookups.found[-1][1], variable.dtype)
        if variable not in lookups.by_rows():
            return jnp.take(self.get(variable), ids, axis=0)
        place = len(lookups.ids)
        lookups.ids.append(ids)
        # The gradient by zeros that are added to the rows is that by the rows; the table is no argument of the
        # function.
        return jax.lax.stop_gradient(read(self.below)) + lookups.moves[place]


def overlaid_rows(executor: Overlay, variable: Variable, ids: Numeric, read: Callable[[Any], Any]) -> Any:
    """Rows that are looked up while a function is differentiated.

    Args:
      executor: the executor in force, which differentiates.
      variable: the variable.
      ids: the numbers of the rows.
      read: looks the rows up as an executor sees them.

    Raises:
      RowsNeeded: it is differentiated by the variable, as a whole so far.
    """
    if isinstance(executor, RowsOverlay) and variable in executor.lookups.variables:
        return executor.rows(variable, ids, read)
    if executor.overlays(variable):
        if not executor.traced:
            return jnp.take(executor.get(variable), ids, axis=0)
        raise RowsNeeded
    below = executor.below
    return overlaid_rows(below, variable, ids, read) if isinstance(below, Overlay) else read(below)


Loss = Callable[[Overlay], tuple[Any, Any]]
"""Calls the user's function under an overlay; returns the loss and what else it gives."""


def differentiate_by_rows(
    differentiate: Callable[..., Any], call: Loss, executor: Executor, derivable: Mapping[Variable, Derivable]
) -> tuple[Any, list[list[Any]]]:
    """The loss and all else that `call` gives, and the gradients: arrays, or `IndexedSlices` of looked-up rows.

    Args:
      differentiate: gives a function's value and the gradients of each of its losses.
      call: calls the user's function.
      executor: the executor in force.
      derivable: the variables, each with the value to differentiate by and what the function sees of it.
    """
    leaves = list(derivable)
    candidates = [leaf for leaf in leaves if leaf.policy.by_rows or (leaf.policy.remote and leaf.shape)]
    lookups = Lookups(candidates)
    # Values of variables that turn out to be looked up only are never used, so that they are not fetched.
    values = {leaf: value for leaf, (value, _) in derivable.items()}

    def seen(chosen: Sequence[Variable], arrays: Sequence[Any]) -> dict[Variable, tuple[Any, Any]]:
        return {leaf: derivable[leaf][1](array) for leaf, array in zip(chosen, arrays, strict=True)}

    def learn(arrays: list[Any]) -> Any:
        return call(RowsOverlay(executor, seen(leaves, arrays), lookups))[0]

    # Traced and thrown away: only after it is it known from which variables only rows are read.
    jax.make_jaxpr(learn)(at(values, leaves))
    by_rows = lookups.by_rows()
    dense = [leaf for leaf in leaves if leaf not in by_rows]
    # In the order of the lookups, which the next trace makes again: so the n-th zeros meet the n-th rows.
    pairs = [(variable, shape) for variable, shape in lookups.found if variable in by_rows]
    looked_up = [variable for variable, _ in pairs]
    zeros = [jnp.zeros(shape, variable.dtype) for variable, shape in pairs]

    def loss(parameters: tuple[list[Any], list[Any]]) -> Any:
        dense_values, moves = parameters
        lookups.restart()
        lookups.moves = moves
        overlay = RowsOverlay(executor, seen(dense, dense_values), lookups)
        value, aux = call(overlay)
        return value, (aux, list(lookups.ids))

    (value, (aux, ids)), grads = differentiate(loss, (at(values, dense), zeros))

    def whole(of_dense: list[Any], of_rows: list[Any]) -> list[Any]:
        gradients = dict(zip(dense, of_dense, strict=True))
        for leaf in by_rows:
            where: list[Any] = []
            rows: list[Any] = []
            for variable, pair, gradient in zip(looked_up, ids, of_rows, strict=True):
                if variable is leaf:
                    where.append(jnp.reshape(pair, -1))
                    rows.append(gradient.reshape(-1, *leaf.shape[1:]))
            if not where:
                where, rows = [jnp.zeros(0, jnp.int32)], [jnp.zeros((0, *leaf.shape[1:]), leaf.dtype)]
            # Rows that were looked up twice stand there twice: `IndexedSlices` adds them up.
            gradients[leaf] = IndexedSlices(jnp.concatenate(rows), jnp.concatenate(where), leaf.shape)
        return at(gradients, leaves)

    return (value, aux), [whole(*pair) for pair in grads]
