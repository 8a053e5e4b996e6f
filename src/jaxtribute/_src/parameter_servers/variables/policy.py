"""Storage of variables on servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from jaxtribute._src.parameter_servers.variables.program import ServerProgram
from jaxtribute._src.types import ArrayLike
from jaxtribute._src.values.mesh import ReplicaMesh
from jaxtribute._src.values.policies.base import Policy

if TYPE_CHECKING:
    from jaxtribute._src.parameter_servers.variables.access import Access


class ServerPolicy(Policy):
    """Values on servers: reads pull, writes send operations (see `ServerVariable`).

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
