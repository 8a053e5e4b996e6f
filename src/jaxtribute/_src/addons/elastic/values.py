"""What an island has of a batch, and of what replicas have computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxtribute import PerReplica


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["data"],
    meta_fields=["mesh", "scalar", "shapes", "idle", "rows"],
)
@dataclass(slots=True, repr=False, eq=False)
class IslandValue(PerReplica[Any]):
    """A value of which each island has its own; `data` is this island's."""

    rows: int | None = None
    """Number of examples that it was computed from, by which means weigh it; None if that is not known."""
    view: int | None = field(default=None, init=False)
    """Number of the view that it was computed in; None within a program. It is not part of the pytree."""

    @property
    def values(self) -> tuple[Any, ...]:
        """This island's value."""
        return (self.data,)


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=["mesh", "scalar", "shapes", "idle"])
@dataclass(slots=True, repr=False, eq=False)
class GlobalBatch(PerReplica[Any]):
    """An array of a batch: `data` are the rows of all islands, of which each takes its own for the view that it is in.

    So nothing has to be read anew if the islands change.
    """

    @property
    def values(self) -> tuple[Any, ...]:
        """This island's rows."""
        if not jnp.ndim(self.data):
            return (self.data,)
        mesh: Any = self.mesh
        return (mesh.own_rows(self.data),)
