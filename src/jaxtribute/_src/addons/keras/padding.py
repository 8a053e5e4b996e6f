"""Batches that replicas cannot share equally, made larger on the host: one program is then enough for all.

The rows that are added are copies of the first one. They count in no loss and no metric, and outputs go without them;
only models of which this is known to be exact get them, see `row_wise.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.apart import apart_of
from jaxtribute._src.addons.keras.data import shared_by_islands
from jaxtribute._src.addons.keras.internals import DataAdapter, KerasModel
from jaxtribute._src.addons.keras.row_wise import Kind, is_row_wise, ranks_of_labels
from jaxtribute._src.addons.keras.variables import on_servers
from jaxtribute.typing import Nest

if TYPE_CHECKING:
    from jaxtribute import Strategy


class Batches(Iterator[Any]):
    """The batches of an epoch, and what is known of their numbers of rows.

    Args:
      batches: the batches.
      adapter: what Keras reads them by.
    """

    def __init__(self, batches: Iterator[Any], adapter: DataAdapter) -> None:
        self._batches = iter(batches)
        rows, partial = internals.batch_sizes(adapter)
        self.rows = rows
        """The rows of most batches; those of the first one, if nothing is known before."""
        self.uneven = partial
        """True if another number is sure to come."""

    def __next__(self) -> Any:
        return next(self._batches)


@dataclass(frozen=True, slots=True)
class Padded:
    """A batch that is padded.

    Attributes:
      batch: the rows, equally many for each replica.
      rows: how many of them are no padding.
      count: the same number, on all devices.
    """

    batch: Any
    rows: int
    count: Any


class Padding:
    """Chooses the batches of one of a model's functions that are padded, and pads them.

    Args:
      strategy: whose replicas get the batches.
      kind: the function.
      ranks: the numbers of axes that the labels of each output may have.
    """

    def __init__(self, strategy: Strategy, kind: Kind, ranks: Sequence[set[int]] = ()) -> None:
        self._replicas, self._weighs = strategy.num_replicas_in_sync, kind != "predict"
        self._ranks = ranks
        self._full: set[Any] = set()
        """Structures and numbers of rows for which there is a program that knows of no padding."""
        self._padded: set[Any] = set()
        """Those for which there is a program that does."""
        self._count = cache(lambda rows: strategy.place(np.int32(rows)))

    @classmethod
    def of(cls, model: KerasModel, strategy: Strategy, kind: Kind) -> Padding | None:
        """The padding for a model's function; None if nothing may be padded."""
        mesh = strategy.extended.mesh
        islands = shared_by_islands(strategy) is not None or apart_of(strategy) is not None
        elsewhere = on_servers(strategy) or islands or mesh.peers is not None
        if elsewhere or mesh.size == 1 or not is_row_wise(model, kind):
            return None
        return cls(strategy, kind, ranks_of_labels(model) if kind != "predict" else ())

    def __call__(self, batch: Nest, source: Iterator[Any]) -> Padded | None:
        """The batch, padded, or with the note that nothing pads it; None if its own program is to run it as it is."""
        # What JAX takes apart otherwise, such as a sparse matrix, has no rows to be copied.
        leaves, tree = jax.tree.flatten(batch, is_leaf=lambda part: not isinstance(part, (tuple, list, dict, NoneType)))
        rows = _rows(leaves)
        if not rows or not self._has_labels(batch):
            return None
        full, uneven = rows, False
        if isinstance(source, Batches):
            source.rows = source.rows or rows
            full, uneven = max(rows, source.rows), source.uneven
        size = -(-full // self._replicas) * self._replicas
        kind = tree, size
        if rows == size and (not self._weighs or kind in self._full or not (uneven or kind in self._padded)):
            self._full.add(kind)
            return None
        self._padded.add(kind)
        more = size - rows
        if more:
            batch = tree.unflatten([_longer(leaf, more) for leaf in leaves])
        return Padded(batch, rows, self._count(rows) if self._weighs else None)

    def _has_labels(self, batch: Nest) -> bool:
        """True if a batch has labels for each output that are compared with it row by row, where any are."""
        if not self._ranks:
            return True
        labels = jax.tree.leaves(batch[1]) if isinstance(batch, tuple) and len(batch) > 1 else []
        if len(labels) != len(self._ranks):
            return False
        return all(label.ndim in ranks for label, ranks in zip(labels, self._ranks, strict=True))


def _rows(leaves: list[Any]) -> int:
    """The number of rows that all arrays have; 0 if they differ, or are no arrays of numbers."""
    if not all(type(leaf) is np.ndarray or isinstance(leaf, jax.Array) for leaf in leaves):
        return 0
    rows = {leaf.shape[0] if leaf.ndim and leaf.dtype.kind in "biuf" else 0 for leaf in leaves}
    return rows.pop() if len(rows) == 1 else 0


def _longer(leaf: Any, more: int) -> np.ndarray[Any, Any]:
    """An array with copies of its first row behind the others."""
    array = np.asarray(leaf)
    return np.concatenate([array, np.repeat(array[:1], more, axis=0)])
