"""An island's values: of a batch, and of what replicas have computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxtribute import PerReplica, Variable
from jaxtribute._src.addons.elastic.membership import View
from jaxtribute.typing import Leaf, Nest

FOREIGN = -1
"""In place of a value's number of examples: another island's, to which this one adds nothing."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["data"],
    meta_fields=["mesh", "scalar", "shapes", "idle", "wrong_mean", "rows"],
)
@dataclass(slots=True, repr=False, eq=False)
class IslandValue(PerReplica[Any]):
    """A value of which each island has its own; `data` is this island's."""

    rows: int | None = None
    """Number of examples that it was computed from, by which means weigh it; `FOREIGN`, or None if it is not known."""
    view: View | None = field(default=None, init=False)
    """The view that it was computed in; None within a program. It is not part of the pytree."""

    @property
    def values(self) -> tuple[Any, ...]:
        """This island's value."""
        return (self.data,)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["data"],
    meta_fields=["mesh", "scalar", "shapes", "idle", "wrong_mean"],
)
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


def is_value(leaf: Leaf) -> bool:
    """True for a leaf that JAX would look into: a distributed value, or a variable."""
    return isinstance(leaf, (PerReplica, Variable))


def island_values(nest: Nest) -> list[IslandValue]:
    """The values in a nest of which each island has its own."""
    return [leaf for leaf in jax.tree.leaves(nest, is_leaf=is_value) if isinstance(leaf, IslandValue)]


def stamped(result: Nest, view: View) -> Any:
    """The result of a step whose parts are those of the islands of a view."""
    for value in island_values(result):
        value.view = view
    return result
