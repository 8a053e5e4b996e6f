"""`Placement`: which server holds which rows of a variable."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from jaxtribute._src.addons.parameter_servers.partitioners import Partitioner, shard_offsets, shards_of
from jaxtribute._src.addons.parameter_servers.server.layout import Layout, Shard


class Placement:
    """Deals variables and their shards out to the servers in turn.

    Args:
      servers: how many there are.
      partitioner: how variables are split.

    Attributes:
      keys: numbers for shards, variables, optimizers and their code.
      shards: for each shard its server, shape and element type.
    """

    def __init__(self, servers: int, partitioner: Partitioner | None) -> None:
        self._servers, self._partitioner = servers, partitioner
        self.keys = itertools.count(1)
        self._turn = itertools.count()
        self.shards: dict[int, tuple[int, tuple[int, ...], str]] = {}

    def note(self, layout: Layout) -> None:
        """Notes that a variable was made."""
        for shard in layout.shards:
            self.shards[shard.key] = shard.server, shard.shape, layout.dtype.name

    def layout(self, shape: tuple[int, ...], dtype: np.dtype[Any], beside: Layout | None) -> Layout:
        """Places a new variable.

        Args:
          shape: its shape.
          dtype: its element type.
          beside: where another variable is that it is to lie beside.
        """
        if beside is not None:
            return self._beside(shape, dtype, beside)
        count = 1
        if self._partitioner is not None and shape:
            # A shard without rows would only cost requests.
            count = max(1, min(shards_of(self._partitioner, shape, dtype), shape[0]))
        if count == 1:
            stop = shape[0] if shape else 0
            # The next server in turn, over all variables, so that small ones spread as well.
            return Layout(shape, dtype, (Shard(next(self.keys), next(self._turn) % self._servers, 0, stop, shape),))
        offsets = shard_offsets(shape[0], count)
        shards = [
            Shard(next(self.keys), next(self._turn) % self._servers, start, stop, (stop - start, *shape[1:]))
            for start, stop in itertools.pairwise(offsets)
        ]
        return Layout(shape, dtype, tuple(shards))

    def _beside(self, shape: tuple[int, ...], dtype: np.dtype[Any], other: Layout) -> Layout:
        """Layout of a variable beside another one: row by row if it has as many, else whole, on its first server."""
        if other.split and shape[:1] == other.shape[:1]:
            shards = [
                replace(shard, key=next(self.keys), shape=(shard.stop - shard.start, *shape[1:]))
                for shard in other.shards
            ]
            return Layout(shape, dtype, tuple(shards))
        stop = shape[0] if shape else 0
        return Layout(shape, dtype, (Shard(next(self.keys), other.shards[0].server, 0, stop, shape),))
