"""A variable with a local value on each replica, reduced when it is read across replicas (ON_READ)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.distributed import PerReplica
from jaxtribute._src.core.values.enums import VariableAggregation
from jaxtribute._src.core.values.mesh import AXIS
from jaxtribute._src.core.values.numbers import summed
from jaxtribute._src.core.values.placing import own
from jaxtribute._src.core.values.policies.base import Policy, Update, Writes, check_arithmetic, coerce
from jaxtribute.errors import VariableError

if TYPE_CHECKING:
    from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.core.values.variable import Variable


class OnReadPolicy(Policy):
    """The local values of shape `s` lie in one global array of shape `(replicas, *s)`, one row a replica.

    Metrics are made of it: replicas write without any communication.

    Args:
      mesh: the devices of each replica.
      layout: the axes within a replica that each local value is split over.
    """

    label = "SyncOnReadVariable"
    writes = Writes.OWN
    split = True

    layout: Layout

    def __init__(self, mesh: ReplicaMesh, layout: Layout = ()) -> None:
        self._mesh, self.layout = mesh, layout

    def laid_out(self, layout: Layout) -> Policy:
        """Local values that are split over the devices of their replica."""
        return OnReadPolicy(self._mesh, layout)

    @property
    def mesh(self) -> ReplicaMesh:
        """The replicas' devices."""
        return self._mesh

    def place(self, value: Numeric) -> jax.Array:
        """A row of its own for each replica, all equal at first."""
        rows = jnp.broadcast_to(jnp.asarray(value), (self.mesh.size, *jnp.shape(value)))
        return own(rows, self.where)

    @property
    def form(self) -> str:
        """One value a replica."""
        return "rows"

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One row a replica."""
        return (self.mesh.size, *shape)

    def local_shape(self, variable: Variable) -> tuple[int, ...]:
        """One row."""
        return (1, *variable.shape)

    def combined(self, array: Numeric, variable: Variable) -> Any:
        """The rows, combined as the variable's aggregation says.

        Raises:
          VariableError: aggregation NONE, or SUM of booleans.
        """
        how = variable.aggregation
        if how is VariableAggregation.NONE:
            raise VariableError(
                f"{variable.name} keeps one value a replica and has aggregation NONE: it has no single value to read "
                "in cross-replica context. HINT: read it in strategy.run, call "
                "strategy.experimental_local_results(variable), or give it an aggregation."
            )
        if how is VariableAggregation.ONLY_FIRST_REPLICA:
            return array[0]
        if how is VariableAggregation.MEAN:
            return array.mean(0)
        check_arithmetic(variable, "read_value with aggregation SUM")
        return summed(array, 0)

    def component(self, part: Numeric, variable: Variable) -> Any:
        """The value in a replica's row."""
        return part.reshape(variable.shape)

    def written_by_one(self, value: Numeric, variable: Variable) -> Any:
        """A replica's row."""
        return jnp.reshape(coerce(variable, value), (1, *variable.shape))

    def written_by_all(self, value: Numeric, update: Update, variable: Variable, shape: tuple[int, ...]) -> Any:
        """The rows that make the next read return `value`.

        Raises:
          VariableError: they cannot be told from the variable's aggregation.
        """
        how = variable.aggregation
        if isinstance(value, PerReplica) and not value.is_ragged:
            return value.data.reshape(shape)
        if how is VariableAggregation.NONE:
            raise VariableError(
                f"{variable.name} has aggregation NONE: {update.value} in cross-replica context does not say what each "
                "replica gets. HINT: write it in strategy.run, or give it an aggregation."
            )
        value = coerce(variable, value)
        if how is VariableAggregation.SUM:
            if update is not Update.ASSIGN:
                raise VariableError(
                    f"{variable.name}.{update.value} in cross-replica context: a SUM variable kept on each replica has "
                    f"no one place to add {value} to. HINT: call it in strategy.run, or assign() the total."
                )
            check_arithmetic(variable, f"{update.value} with aggregation SUM")
            return self._parts(jnp.asarray(value), shape)
        return jnp.broadcast_to(value, shape)

    def _parts(self, total: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """The rows of a stored array, or a replica's own row of them, which add up to `total`."""
        replicas = self.mesh.size
        if jnp.issubdtype(total.dtype, jnp.inexact):
            return jnp.broadcast_to(total / jnp.asarray(replicas, total.dtype), shape)
        # Whole numbers in whole parts: the first replicas have one more if it does not come out even. In 32 bits at
        # least, which hold the number of replicas.
        whole = total.astype(jnp.int32) if total.dtype.itemsize < np.dtype(np.int32).itemsize else total
        count = jnp.full_like(whole, replicas)
        part, rest = whole // count, whole % count
        numbers = jnp.arange(replicas) if shape[0] == replicas else lax.axis_index(AXIS)[None]
        numbers = numbers.astype(whole.dtype).reshape(-1, *[1] * whole.ndim)
        more = jnp.broadcast_to(numbers, shape) < jnp.broadcast_to(rest, shape)
        return (jnp.broadcast_to(part, shape) + more.astype(whole.dtype)).astype(total.dtype)

    def gradient(self, gradient: Numeric, variable: Variable) -> Any:
        """That for the combined value, from those for the rows."""
        # To the rows comes the value's gradient: to each for a sum, to each a part for a mean, to the first alone
        # otherwise.
        return gradient.sum(0) if variable.aggregation is VariableAggregation.MEAN else gradient[0]

    @property
    def by_component(self) -> bool:
        """True: each replica has a row."""
        return True

    def components(self, array: Numeric, variable: Variable) -> tuple[Any, bool]:
        """The rows, one behind the other: each replica's component is its slice of axis 0."""
        shape = variable.shape
        return (array.reshape(array.shape[0] * shape[0], *shape[1:]) if shape else array), not shape

    def contributed(self, array: Numeric) -> Any:
        """The array as a row: each replica adds to its own."""
        return array[None]
