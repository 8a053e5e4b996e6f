"""A variable of which every replica stores one slice (fully sharded data parallelism)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Sharding

from jaxtribute._src.types import Numeric
from jaxtribute._src.values import slices
from jaxtribute._src.values.distributed import Mirrored
from jaxtribute._src.values.mesh import own
from jaxtribute._src.values.policies.base import Policy, Update, combined
from jaxtribute._src.values.policies.mirrored import MirroredPolicy

if TYPE_CHECKING:
    from jaxtribute._src.context import Context
    from jaxtribute._src.execution.executor import Executor
    from jaxtribute._src.values.mesh import ReplicaMesh
    from jaxtribute._src.values.variable import Variable

SHARDED_BYTES = 1 << 14
"""Variables from this size on are sharded: below it, a collective costs more than a copy on each device."""


class ShardedPolicy(Policy):
    """The flattened value, padded with zeros to a multiple of the replicas, one equal slice a replica.

    To user code it is one value, as a mirrored variable's: a read puts it together, a write keeps a slice. Small
    variables are mirrored.

    Args:
      mesh: the device of each replica.
      min_bytes: variables that are smaller are mirrored.
      regather: whether the backward pass of `jd.value_and_grad` puts values together again.
      shape: the variable's shape, once it is known.
    """

    label = "FullyShardedVariable"
    split = True
    form = "flat"

    def __init__(
        self,
        mesh: ReplicaMesh,
        *,
        min_bytes: int = SHARDED_BYTES,
        regather: bool = True,
        shape: tuple[int, ...] = (),
    ) -> None:
        self._mesh, self._min_bytes, self._shape = mesh, min_bytes, shape
        self.regathers = regather

    @property
    def mesh(self) -> ReplicaMesh:
        """The replicas' devices."""
        return self._mesh

    @property
    def shared(self) -> bool:
        """All replicas see the whole value."""
        return True

    def fitted(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Policy:
        """Copies instead of slices, where the value is small."""
        size = math.prod(shape)
        if size * np.dtype(dtype).itemsize < self._min_bytes or size < self.mesh.size:
            return MirroredPolicy(self.mesh)
        return ShardedPolicy(self.mesh, min_bytes=self._min_bytes, regather=self.regathers, shape=shape)

    def place(self, value: Numeric) -> jax.Array:
        """A slice of the flat value on each device."""
        if isinstance(value, jax.Array):
            return self.collected(value)
        host = np.asarray(value).reshape(-1)  # goes slice by slice: no device ever holds the whole
        return own(np.pad(host, (0, -host.size % self.mesh.size)), self.mesh.split)

    def local_shape(self, variable: Variable) -> tuple[int, ...]:
        """One slice."""
        return (slices.slice_size(variable.size, self.mesh.size),)

    def read(self, variable: Variable, context: Context) -> Any:
        """The whole value, gathered."""
        return self.whole(variable, context)

    def write(self, variable: Variable, value: Numeric, update: Update, context: Context) -> None:
        """Updates the slices, with what the replicas write combined."""
        value = combined(variable, value, update, context, self.mesh.size)

        def write(executor: Executor) -> None:
            within = replace(context, executor=executor)
            old = None if update is Update.ASSIGN else self.whole(variable, within)
            self.store(variable, update.apply(old, value), within)

        context.executor.together(write)

    def whole(self, variable: Variable, context: Context) -> Any:
        """The value put together from its slices."""
        executor = context.executor
        if not executor.local:
            array = executor.get(variable)
            return self.value(array) if executor.traced else self.spread(array)
        if not executor.traced:
            return executor.get(variable)
        return executor.derive(variable, lambda piece: slices.whole(piece, self._shape, self.mesh.size))

    def store(self, variable: Variable, value: Numeric, context: Context) -> None:
        """Cuts the value into slices; each device keeps its own."""
        executor = context.executor
        if executor.local and executor.traced:
            value = slices.alike(jnp.asarray(value), variable.name)
            executor.set(variable, slices.slice_of(value, self.mesh.size))
        elif executor.local:
            executor.set(variable, value)
        else:
            executor.set(variable, slices.flat(jnp.asarray(value), self.mesh.size))

    def derivable(self, variable: Variable, context: Context) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
        """The slice, and how to gather it, where the backward pass shall gather again; else the whole value."""
        executor = context.executor
        if not (executor.local and executor.traced):
            return super().derivable(variable, context)
        piece = executor.get(variable)
        if not self.regathers or executor.differentiating:
            return self.whole(variable, context), lambda value: (piece, value)
        probe = jnp.zeros(self._shape, variable.dtype)
        return probe, lambda value: (piece, slices.whole(piece, self._shape, self.mesh.size, value))

    def gradient(self, variable: Variable, gradient: Numeric, context: Context) -> Any:
        """Of the value's shape, without the padding."""
        return gradient if context.executor.local else self.value(gradient)

    def value(self, array: Numeric) -> Any:
        """The flat array without its padding, in the value's shape."""
        return array[: math.prod(self._shape)].reshape(self._shape)

    def spread(self, array: jax.Array) -> jax.Array:
        """A copy of the whole value on each device."""
        return _gathered(array, self._shape, self.mesh.replicated)

    def collected(self, array: jax.Array) -> jax.Array:
        """The slices of a value that is whole on each device."""
        return own(slices.flat(jnp.asarray(array), self.mesh.size), self.mesh.split)

    def distributed(self, variable: Variable, context: Context) -> Any:
        """The whole value on each device, as `Mirrored`."""
        return Mirrored(self.whole(variable, context), self.mesh)


@partial(jax.jit, static_argnums=(1, 2))
def _gathered(array: jax.Array, shape: tuple[int, ...], where: Sharding) -> jax.Array:
    """The whole value on every replica's device, those of other processes too."""
    return lax.with_sharding_constraint(array[: math.prod(shape)].reshape(shape), where)
