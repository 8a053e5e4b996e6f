"""A variable stored in slices, one a replica: the slots of an optimizer with a sharded update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxtribute._src.types import Numeric
from jaxtribute._src.values.mesh import own
from jaxtribute._src.values.policies.base import Policy, Update, coerce

if TYPE_CHECKING:
    from jaxtribute._src.context import Context
    from jaxtribute._src.values.mesh import ReplicaMesh
    from jaxtribute._src.values.variable import Variable


class SlicedPolicy(Policy):
    """The flattened value, padded with zeros to a multiple of the replicas, one equal slice a replica.

    Read and written whole in cross-replica context; a replica sees its slice, of shape `(slice_size,)`.
    """

    label = "SlicedVariable"
    split = True
    form = "flat"

    def __init__(self, mesh: ReplicaMesh) -> None:
        self._mesh = mesh

    @property
    def mesh(self) -> ReplicaMesh:
        """The replicas' devices."""
        return self._mesh

    def place(self, value: Numeric) -> jax.Array:
        """A slice of the flat value on each device."""
        return own(self._flatten(jnp.asarray(value)), self.mesh.split)

    def local_shape(self, variable: Variable) -> tuple[int, ...]:
        """One slice, which is padded where they are uneven."""
        return (-(-variable.size // self.mesh.size),)

    def read(self, variable: Variable, context: Context) -> Any:
        """A replica's own slice; elsewhere the whole value."""
        flat = context.executor.get(variable)
        if context.executor.local:
            return flat
        return flat[: variable.size].reshape(variable.shape)

    def write(self, variable: Variable, value: Numeric, update: Update, context: Context) -> None:
        """Updates a replica's own slice; elsewhere the whole value."""
        executor = context.executor
        value = value if executor.local else self._flatten(coerce(variable, value))
        executor.together(lambda executor: executor.set(variable, update.apply(executor.get(variable), value)))

    def whole(self, variable: Variable, context: Context) -> Any:
        """Reads like `read`: an update of slices needs no other slice."""
        return self.read(variable, context)

    def store(self, variable: Variable, value: Numeric, context: Context) -> None:
        """Cuts the value into slices."""
        context.executor.set(variable, self._flatten(value))

    def distributed(self, variable: Variable, context: Context) -> Any:
        """The slices, as `PerReplica`."""
        flat = context.executor.get(variable)
        return context.executor.component(flat, self.mesh, scalar=False)

    def _flatten(self, value: Numeric) -> Any:
        flat = jnp.ravel(value)
        return jnp.pad(flat, (0, -flat.size % self.mesh.size))
