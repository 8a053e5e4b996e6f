"""`Apart`: what Keras's `fit`, `evaluate` and `predict` ask of islands that train alone for some steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from jaxtribute import Variable
from jaxtribute._src.addons.elastic.common import Role
from jaxtribute._src.addons.elastic.shares import NOT_ITS_OWN
from jaxtribute.extending import as_batch
from jaxtribute.typing import Nest

if TYPE_CHECKING:
    from jaxtribute._src.addons.elastic.local import LocalMesh


class Apart:
    """An island that trains a Keras model alone, and meets the others.

    Args:
      mesh: the island's devices, and the others.
      always: True if islands may differ also where no step has been taken since they met.
    """

    def __init__(self, mesh: LocalMesh, always: bool) -> None:
        self._mesh, self._always = mesh, always

    def tell(self, variable: Variable, role: Role) -> None:
        """Takes note of what a variable is to Keras."""
        self._mesh.common.told(variable, role)

    def take(self, batch: Nest, place: Callable[[Nest], tuple[Any, int]]) -> tuple[Any, int]:
        """Places this island's rows of a batch of all islands.

        An island without any is given the first row, so that a model which needs one can compute; nothing of it stays.

        Args:
          batch: a tree of arrays on the host.
          place: puts rows on the island's devices, and returns them with their number.
        """
        whole = as_batch(batch)
        start, stop = self._mesh.share(whole.total or 0)
        own = slice(start, stop) if stop > start else slice(0, 1)
        placed, rows = place(jax.tree.map(lambda leaf: leaf[own], whole.tree))
        self._mesh.rows.note(placed, rows if stop > start else NOT_ITS_OWN)
        return placed, rows

    def meet(self) -> None:
        """Meets the other islands: what is read then is the same on all."""
        self._mesh.meet()

    def settle(self) -> None:
        """Meets the other islands if the parameters may differ between them."""
        if self._always or self._mesh.parted:
            self._mesh.meet()
