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
from jaxtribute._src.values.distributed import Mirrored
from jaxtribute._src.values.mesh import everywhere, own
from jaxtribute._src.values.policies.base import Policy, Update, combined
from jaxtribute._src.values.policies.in_pieces import PiecesPolicy
from jaxtribute._src.values.policies.mirrored import MirroredPolicy
from jaxtribute._src.values.slices import Cut, NotCuttable, alike

if TYPE_CHECKING:
    from jaxtribute._src.context import Context
    from jaxtribute._src.execution.executor import Executor
    from jaxtribute._src.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.values.variable import Variable

SHARDED_BYTES = 1 << 14
"""Variables from this size on are sharded: below it, a collective costs more than a copy on each device."""


class ShardedPolicy(PiecesPolicy):
    """Pieces that make up what every replica sees.

    To user code it is one value, as a mirrored variable's: a read puts it together, a write keeps a piece. Small
    variables are mirrored.

    Args:
      mesh: the devices of each replica.
      min_bytes: variables that are smaller are mirrored.
      regather: whether the backward pass of `jd.value_and_grad` puts values together again.
      layout: the axes within a replica that the value is split over.
      cut: how the value is cut, once its shape is known.
    """

    label = "FullyShardedVariable"

    def __init__(
        self,
        mesh: ReplicaMesh,
        *,
        min_bytes: int = SHARDED_BYTES,
        regather: bool = True,
        layout: Layout = (),
        cut: Cut | None = None,
    ) -> None:
        super().__init__(mesh, Cut((), mesh.size) if cut is None else cut, layout)
        self._min_bytes, self.regathers = min_bytes, regather

    def laid_out(self, layout: Layout) -> Policy:
        """Pieces of a value that is split over the devices of its replica."""
        return ShardedPolicy(self.mesh, min_bytes=self._min_bytes, regather=self.regathers, layout=layout)

    @property
    def shared(self) -> bool:
        """All replicas see the whole value."""
        return True

    def fitted(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Policy:
        """Copies instead of slices, where the value is small."""
        size = math.prod(shape)
        if size * np.dtype(dtype).itemsize < self._min_bytes or size < self.mesh.size:
            return MirroredPolicy(self.mesh, self.layout)
        try:
            cut = Cut.of(shape, self.mesh, self.layout)
        except NotCuttable:
            return MirroredPolicy(self.mesh, self.layout)
        return ShardedPolicy(self.mesh, min_bytes=self._min_bytes, regather=self.regathers, layout=self.layout, cut=cut)

    def place(self, value: Numeric) -> jax.Array:
        """A piece of the value in each replica."""
        if isinstance(value, jax.Array):
            return self.collected(value)
        host = np.asarray(value)  # goes piece by piece: no device ever holds the whole
        if self.cut.axis is None:
            host = np.pad(host.reshape(-1), (0, self.cut.stored_shape[0] - host.size))
        return own(host, self.where)

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
            if executor.traced:
                return self.value(array)
            spread = self.spread(array)
            return everywhere(spread, self.mesh) if self.layout and self.mesh.peers is not None else spread
        if not executor.traced:
            return executor.get(variable)
        return executor.derive(variable, self.cut.whole)

    def store(self, variable: Variable, value: Numeric, context: Context) -> None:
        """Cuts the value into slices; each device keeps its own."""
        executor = context.executor
        if executor.local and executor.traced:
            value = alike(jnp.asarray(value), variable.name)
            executor.set(variable, self.cut.piece_of(value))
        elif executor.local:
            executor.set(variable, value)
        else:
            executor.set(variable, self.cut.stored(jnp.asarray(value)))

    def derivable(self, variable: Variable, context: Context) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
        """The slice, and how to gather it, where the backward pass shall gather again; else the whole value."""
        executor = context.executor
        if not (executor.local and executor.traced):
            return super().derivable(variable, context)
        piece = executor.get(variable)
        if not self.regathers or executor.differentiating:
            return self.whole(variable, context), lambda value: (piece, value)
        probe = jnp.zeros(self.cut.shape, variable.dtype)
        return probe, lambda value: (piece, self.cut.whole(piece, value))

    def gradient(self, variable: Variable, gradient: Numeric, context: Context) -> Any:
        """Of the value's shape, without the padding."""
        return gradient if context.executor.local else self.value(gradient)

    def value(self, array: Numeric) -> Any:
        """The value that the pieces form."""
        return self.cut.value(array)

    def spread(self, array: jax.Array) -> jax.Array:
        """A copy of the whole value in each replica."""
        return _gathered(array, self.cut, self.mesh.laid_out(self.layout))

    def collected(self, array: jax.Array) -> jax.Array:
        """The pieces of a value that is whole in each replica."""
        return own(self.cut.stored(jnp.asarray(array)), self.where)

    def distributed(self, variable: Variable, context: Context) -> Any:
        """The whole value on each device, as `Mirrored`."""
        return Mirrored(self.whole(variable, context), self.mesh)


@partial(jax.jit, static_argnums=(1, 2))
def _gathered(array: jax.Array, cut: Cut, where: Sharding) -> jax.Array:
    """The whole value in every replica, those of other processes too."""
    return lax.with_sharding_constraint(cut.value(array), where)
