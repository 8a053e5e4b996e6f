"""A variable of which every replica stores one slice (fully sharded data parallelism)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.placing import own
from jaxtribute._src.core.values.policies.base import Policy
from jaxtribute._src.core.values.policies.mirrored import MirroredPolicy
from jaxtribute._src.core.values.policies.sliced import PiecesPolicy, SlicedPolicy
from jaxtribute._src.core.values.slices import Cut, NotCuttable, alike

if TYPE_CHECKING:
    from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.core.values.variable import Variable

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
    mirrored = True

    regathers: bool

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
        return True

    def fitted(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Policy:
        """Copies instead of slices, where the value is small."""
        size = math.prod(shape)
        # With fewer elements than replicas some pieces would be nothing but padding.
        if size * np.dtype(dtype).itemsize < self._min_bytes or size < self.mesh.size:
            return MirroredPolicy(self.mesh, self.layout)
        try:
            cut = Cut.of(shape, self.mesh, self.layout)
        # No axis can be divided over the devices of a replica and over the replicas: each replica keeps the value.
        except NotCuttable:
            return MirroredPolicy(self.mesh, self.layout)
        return ShardedPolicy(self.mesh, min_bytes=self._min_bytes, regather=self.regathers, layout=self.layout, cut=cut)

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
        return SlicedPolicy(self.mesh, self.cut, self.layout)

    def spread(self, array: jax.Array) -> jax.Array:
        return self.gathered(array)

    def collected(self, array: jax.Array) -> jax.Array:
        """The pieces of a value that is whole in each replica."""
        return own(self.cut.stored(jnp.asarray(array)), self.where)
