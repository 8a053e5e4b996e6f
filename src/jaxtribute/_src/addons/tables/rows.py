"""The places of a table's rows: which replica has a row, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

MOST_STRIPES = 256
"""Rows that are looked up often mostly follow each other: neighbours lie in different stripes, and on several replicas.
The number does not depend on that of the replicas, so that a checkpoint's rows lie alike for any number of them."""


@dataclass(frozen=True)
class Places:
    """The places of rows in the array that stores a table.

    The stored array has stripes behind each other: rows 0, s, 2 s, ..., then 1, s + 1, ... for s stripes. Each replica
    has an equal part of it; the last parts end with padding.

    Attributes:
      rows: how many rows the table has.
      replicas: how many replicas there are.
      stripes: how many stripes.
    """

    rows: int
    replicas: int
    stripes: int

    @property
    def length(self) -> int:
        """The number of rows of a stripe, with padding."""
        return -(-self.rows // self.stripes)

    @property
    def part(self) -> int:
        """The number of rows of one replica's part, with padding."""
        return -(-self.stripes * self.length // self.replicas)

    @property
    def stored(self) -> int:
        """The number of rows of all parts."""
        return self.part * self.replicas

    def of_ids(self, ids: Any) -> Any:
        """The places of rows, `stored` for ids that name none."""
        # Compared before they are cut to 32 bits, in which an id beyond them would be that of another row.
        ids = wide(ids)
        known = (ids >= np.asarray(0, ids.dtype)) & (ids < np.asarray(self.rows, ids.dtype))
        ids = ids.astype(np.int32)
        stripes, length = map(np.int32, (self.stripes, self.length))
        places = ids if self.stripes == 1 else ids % stripes * length + ids // stripes
        return jnp.where(known, places, np.int32(self.stored))

    def ids_at(self, places: Any) -> Any:
        """The rows at places, `rows` where there is padding, or no place."""
        rows, stripes, length = map(np.int32, (self.rows, self.stripes, self.length))
        ids = places if self.stripes == 1 else places % length * stripes + places // length
        return jnp.where((places < stripes * length) & (ids < rows), ids, rows)

    def stored_of(self, value: Any, xp: Any = jnp) -> Any:
        """The stored array of a table of shape `(rows, ...)`, by the functions of `jax.numpy` or `numpy`."""
        rest = value.shape[1:]
        value = _padded(value, self.stripes * self.length, xp)
        if self.stripes > 1:
            value = value.reshape(self.length, self.stripes, *rest).swapaxes(0, 1).reshape(-1, *rest)
        return _padded(value, self.stored, xp)

    def value_of(self, stored: Any) -> Any:
        """The table of a stored array: the inverse of `stored_of`."""
        rest = stored.shape[1:]
        if self.stripes > 1:
            striped = stored[: self.stripes * self.length].reshape(self.stripes, self.length, *rest)
            stored = striped.swapaxes(0, 1).reshape(-1, *rest)
        return stored[: self.rows]


def wide(ids: Any) -> Any:
    """Ids of at least 32 bits, in which the number of rows can be told as well."""
    ids = jnp.asarray(ids)
    least = np.int32 if jnp.issubdtype(ids.dtype, jnp.signedinteger) else np.uint32
    return ids.astype(np.promote_types(ids.dtype, least))


def _padded(value: Any, rows: int, xp: Any) -> Any:
    more = rows - value.shape[0]
    return xp.pad(value, [(0, more), *[(0, 0)] * (value.ndim - 1)]) if more else value
