"""Division of a variable's rows over the servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxtribute.typing import HostArray


@dataclass(frozen=True, slots=True)
class Shard:
    """Some rows of a variable, or all of it.

    Attributes:
      key: what the server knows it by.
      server: which server holds it.
      start: its first row.
      stop: the row behind its last.
      shape: its shape.
    """

    key: int
    server: int
    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of a variable's rows.

    Attributes:
      shape: the variable's shape.
      dtype: its element type.
      shards: its rows in order, or as many copies of it.
      copies: whether each shard is the whole value, as an optimizer's step count beside the variables of each server.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    shards: tuple[Shard, ...]
    copies: bool = False

    @property
    def split(self) -> bool:
        """True if several shards make up the value."""
        # Copies of one value are shards too, but no parts of it.
        return len(self.shards) > 1 and not self.copies

    @property
    def keys(self) -> set[int]:
        """Keys of the shards, by which two layouts that share some are known."""
        return {shard.key for shard in self.shards}

    @property
    def servers(self) -> set[int]:
        """The servers that hold some of it."""
        return {shard.server for shard in self.shards}

    def join(self, parts: Sequence[Any]) -> Any:
        """The value, of the shards' values."""
        return np.concatenate(parts) if self.split else parts[0]

    def pieces(self, value: HostArray) -> Iterator[tuple[Shard, Any]]:
        """Each shard with its part of `value`, an array of the variable's shape."""
        for shard in self.shards:
            yield shard, value[shard.start : shard.stop] if self.split else value

    def rows(self, ids: np.ndarray[Any, Any]) -> Iterator[tuple[Shard, np.ndarray[Any, Any]]]:
        """The shards that hold some of the rows `ids`, and a mask of which.

        Rows beyond the variable are on no shard.
        """
        for shard in self.shards:
            # A shard that is no part holds all rows, whatever bounds it was made with.
            start, stop = (shard.start, shard.stop) if self.split else (0, self.shape[0])
            mask = (ids >= start) & (ids < stop)
            if mask.any():
                yield shard, mask
