"""A variable of which every replica stores one slice (fully sharded data parallelism)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec, Sharding

from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.placing import own
from jaxtribute._src.core.values.policies.base import Policy
from jaxtribute._src.core.values.policies.mirrored import MirroredPolicy
from jaxtribute._src.core.values.slices import Cut, NotCuttable, alike

if TYPE_CHECKING:
    from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.core.values.variable import Variable

SHARDED_BYTES = 1 << 14
"""Variables from this size on are sharded: below it, a collective costs more than a copy on each device."""


class ShardedPolicy(Policy):
    """One equal piece of the value a replica, of which all make up what every replica sees.

    To user code it is one value, as a mirrored variable's: a read puts it together, a write keeps a piece. Small
    variables are mirrored. So are the slots of an optimizer with a sharded update stored, and sums of gradients.

    Args:
      mesh: the devices of each replica.
      min_bytes: variables that are smaller are mirrored.
      regather: whether the backward pass of `jd.value_and_grad` puts values together again.
      layout: the axes within a replica that the value is split over.
      cut: how the value is cut, once its shape is known.
    """

    label = "FullyShardedVariable"
    mirrored = split = True

    layout: Layout
    regathers: bool
    min_bytes: int

    def __init__(
        self,
        mesh: ReplicaMesh,
        *,
        min_bytes: int = SHARDED_BYTES,
        regather: bool = True,
        layout: Layout = (),
        cut: Cut | None = None,
    ) -> None:
        self._mesh, self._cut, self.layout = mesh, Cut((), mesh.size) if cut is None else cut, layout
        self.min_bytes, self.regathers = min_bytes, regather

    @property
    def mesh(self) -> ReplicaMesh:
        return self._mesh

    @property
    def cut(self) -> Cut:
        return self._cut

    @property
    def form(self) -> str:
        """Flat, unless an axis is cut."""
        return "flat" if self.cut.axis is None else "value"

    @property
    def where(self) -> Sharding:
        """The pieces over the replicas, each shared by the replica's devices."""
        return self.cut.laid_out(self.layout, self.mesh)

    @property
    def spec(self) -> PartitionSpec:
        return self.cut.spec

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.cut.stored_shape

    def local_shape(self, variable: Variable) -> tuple[int, ...]:
        """One piece, which is padded if they are uneven."""
        return self.cut.piece_shape

    def value(self, array: Numeric) -> Any:
        return self.cut.value(array)

    def gathered(self, array: jax.Array) -> jax.Array:
        """A copy of the whole value in each replica, those of other processes too."""
        # Run as Python, where `jax.disable_jit` holds, it would give each replica a piece for the whole.
        with jax.disable_jit(False):
            return _gathered(array, self.cut, self.mesh.laid_out(self.layout))

    def pieces(self, value: Numeric) -> Any:
        return self.cut.stored(jnp.asarray(value))

    def laid_out(self, layout: Layout) -> Policy:
        """Pieces of a value that is split over the devices of its replica."""
        return ShardedPolicy(self.mesh, min_bytes=self.min_bytes, regather=self.regathers, layout=layout)

    @property
    def shared(self) -> bool:
        return True

    def fitted(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Policy:
        """Copies instead of slices, where the value is small."""
        size = math.prod(shape)
        # With fewer elements than replicas some pieces would be nothing but padding.
        if size * np.dtype(dtype).itemsize < self.min_bytes or size < self.mesh.size:
            return MirroredPolicy(self.mesh, self.layout)
        try:
            cut = Cut.of(shape, self.mesh, self.layout)
        # No axis can be divided over the devices of a replica and over the replicas: each replica keeps the value.
        except NotCuttable:
            return MirroredPolicy(self.mesh, self.layout)
        return ShardedPolicy(self.mesh, min_bytes=self.min_bytes, regather=self.regathers, layout=self.layout, cut=cut)

    def place(self, value: Numeric) -> jax.Array:
        if isinstance(value, jax.Array):
            return self.collected(value)
        host = np.asarray(value)  # goes piece by piece: no device ever holds the whole
        if self.cut.axis is None:
            host = np.pad(host.reshape(-1), (0, self.cut.stored_shape[0] - host.size))
        return own(host, self.where)

    @property
    def join(self) -> Callable[..., Any]:
        return self.cut.whole

    def own_piece(self, value: Numeric, variable: Variable) -> Any:
        """The replica's piece of the value, which must be the same on all of them."""
        return self.cut.piece_of(alike(jnp.asarray(value), variable.name))

    def read_by_python(self, array: Numeric, variable: Variable) -> Any:
        return self.gathered(array)

    def gradient(self, gradient: Numeric, variable: Variable) -> Any:
        """Of the value's shape, without the padding."""
        return self.value(gradient)

    def accumulated(self) -> Policy:
        """A piece of the sum in each replica: whole sums would take the memory that pieces save."""
        return ShardedPolicy(self.mesh, layout=self.layout, cut=self.cut)

    def contributed(self, array: Numeric) -> Any:
        return self.cut.scattered(array)

    def spread(self, array: jax.Array) -> jax.Array:
        return self.gathered(array)

    def collected(self, array: jax.Array) -> jax.Array:
        """The pieces of a value that is whole in each replica."""
        return own(self.cut.stored(jnp.asarray(array)), self.where)


@partial(jax.jit, static_argnums=(1, 2))
def _gathered(array: jax.Array, cut: Cut, where: Sharding) -> jax.Array:
    return lax.with_sharding_constraint(cut.value(array), where)
