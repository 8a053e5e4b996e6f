"""`DynamicVocabulary`: rows of a table for keys of which there are more than rows."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxtribute as jd
from jaxtribute._src.addons.tables.table import ShardedTable
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from jaxtribute.extending import Context, Function
from jaxtribute.typing import ArrayLike

Evict = Literal["oldest", "rarest"]
HostArray = np.ndarray[Any, Any]


class Restart:
    """Gives rows of a table their first values again, and the slots that optimizers keep beside them.

    Args:
      table: the table.

    Raises:
      ArgumentError: its first rows were an array.
    """

    def __init__(self, table: ShardedTable) -> None:
        if table.first_rows is None:
            raise ArgumentError(
                f"the first rows of {table.name} were an array, and rows that change hands begin anew. HINT: make the "
                "table with a function of ids as its initializer, or with the default one."
            )
        self._table = table
        self._known: list[weakref.ref[Any]] = []
        self._program: Function[..., None] = Function(self._run)

    def __call__(self, ids: HostArray) -> None:
        """Begins the rows of ids anew, in code of all replicas."""
        updates = list(map(weakref.ref, self._table.policy.updates))
        if updates != self._known:  # the slots of other optimizers
            self._known, self._program = updates, Function(self._run)
        # Few sizes, so that few programs are compiled; an id behind the last names no row.
        size = 1 << max(3, (len(ids) - 1).bit_length())
        self._program(jnp.asarray(np.pad(ids, (0, size - len(ids)), constant_values=self._table.shape[0])))

    def _run(self, ids: Any) -> None:
        self._table.distribute_strategy.run(self._replica, (ids,))

    def _replica(self, ids: Any) -> None:
        table, executor = self._table, Context.current().executor
        places, make = table.policy.places, table.first_rows
        assert make is not None
        local = places.of_ids(ids)
        if places.replicas > 1:
            local -= lax.axis_index(jd.REPLICA_AXIS).astype(np.int32) * np.int32(places.part)
            local = jnp.where((local >= 0) & (local < np.int32(places.part)), local, np.int32(places.part))
        rows = make(jnp.minimum(ids, np.int32(table.shape[0] - 1))).astype(table.dtype)
        written: list[tuple[Any, Any]] = [(table, rows)]
        for updates in table.policy.updates:
            written += updates.first_slots(table, rows, executor)
        for variable, values in written:
            executor.set(variable, executor.get(variable).at[local].set(values, mode="drop"))


class DynamicVocabulary:
    """Gives keys without a bound, strings or whole numbers, the rows of a table, and takes rows back when none is left.

    A key gets a row when it first comes. When all rows are taken, the key that has not come for longest loses its row,
    or the one that has come least often. The row begins anew, and so does what optimizers keep beside it. Call it on
    the host, on the batches of all replicas: `ids = vocabulary(keys)`. Of several workers all must give it the same
    keys in the same order, as where each reads whole batches. A checkpoint keeps it: `jd.Checkpoint(keys=vocabulary)`.

    Args:
      table: the table, made with first rows that are a function of ids.
      evict: which key loses its row: the `"oldest"`, that has not come for longest, or the `"rarest"`, that has come
        least often, of several the oldest.

    Raises:
      ArgumentError: another way to evict, or a table whose first rows were an array.
      ArgumentTypeError: not a table over the replicas.

    Examples:
      >>> vocabulary = jd.nn.DynamicVocabulary(jd.nn.ShardedTable(2, 4))
      >>> vocabulary(["socks", "shoes", "socks"])
      array([0, 1, 0], dtype=int32)
      >>> vocabulary(["hat"])
      array([0], dtype=int32)
      >>> vocabulary(["socks", "shoes"], training=False)
      array([-1,  1], dtype=int32)

    Source: `DynamicEmbedding` of TensorFlow Recommenders Addons.
    """

    def __init__(self, table: ShardedTable, evict: Evict = "oldest") -> None:
        if not isinstance(table, ShardedTable):
            raise ArgumentTypeError(
                f"a vocabulary of {type(table).__name__} {table!r}. HINT: pass a jd.nn.ShardedTable, under a strategy "
                "whose replicas hold its rows."
            )
        if evict not in get_args(Evict):
            raise ArgumentError(f"evict is {evict!r}. HINT: pass 'oldest' or 'rarest'.")
        self._table, self._evict, self._restart = table, evict, Restart(table)
        self._ids: dict[Any, int] = {}
        rows = table.shape[0]
        self._keys: list[Any] = []
        """The keys of rows, as far as they are taken."""
        self._last, self._count = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        """For each row the call in which its key came last, and how often it has come."""
        self._calls = 0

    def __len__(self) -> int:
        """Return the number of keys that have rows."""
        return len(self._ids)

    def __contains__(self, key: object) -> bool:
        """Return True if a key has a row."""
        return key in self._ids

    def __repr__(self) -> str:
        keys, rows = f"{len(self):,} keys", f"{self._table.shape[0]:,} rows"
        return f"<jd.nn.DynamicVocabulary of {keys} in {rows}; evicts the {self._evict}>"

    def __call__(self, keys: ArrayLike | Sequence[Any], training: bool = True) -> HostArray:
        """Returns the ids of keys, an int32 array of their shape.

        The key -1, and the empty string, stand for no row, -1, as in lists that are filled up; with a combiner
        `jd.nn.embedding_lookup` leaves them out.

        Args:
          keys: whole numbers or strings, of any shape.
          training: whether keys that are not known get rows; otherwise their id is -1, and nothing changes.

        Raises:
          ArgumentError: more different keys than the table has rows.
          ArgumentTypeError: keys of another type.
        """
        array = np.asarray(keys)
        if array.dtype.kind in "OS":
            # Objects of pandas may be strings, bytes or whole numbers, and are keys as what they are.
            told = [one.decode() if isinstance(one, bytes) else one for one in array.ravel().tolist()]
            array = np.array(told, None if told else "U1").reshape(array.shape)
        elif array.dtype.kind == "T":
            array = array.astype(str)
        if array.dtype.kind not in "iuU":
            raise ArgumentTypeError(f"keys have dtype {array.dtype}. HINT: pass whole numbers or strings.")
        distinct, first, inverse, counts = np.unique(array, return_index=True, return_inverse=True, return_counts=True)
        nothing: Any = "" if array.dtype.kind == "U" else -1
        names = distinct.tolist()
        ids = np.array([self._ids.get(name, -1) for name in names], np.int32)
        real = np.array([name != nothing for name in names], bool)
        ids[~real] = -1
        if training:
            self._begin(names, ids, real, first)
            self._last[ids[real]] = self._calls
            self._count[ids[real]] += counts[real]
        return ids[inverse].reshape(array.shape)

    def _begin(self, names: list[Any], ids: HostArray, real: HostArray, first: HostArray) -> None:
        """Gives rows to new keys, in `ids`, in the order in which they come."""
        rows = self._table.shape[0]
        if real.sum() > rows:
            raise ArgumentError(
                f"{real.sum():,} different keys at once, and {self._table.name} has {rows:,} rows. HINT: make a larger "
                "table, or smaller batches."
            )
        self._calls += 1
        new = np.flatnonzero(real & (ids < 0))
        new = new[np.argsort(first[new])]
        taken = len(self._keys)
        fresh = np.arange(taken, min(rows, taken + len(new)), dtype=np.int32)
        evicted = self._evicted(len(new) - len(fresh), ids[ids >= 0])
        if len(evicted):
            self._restart(evicted)
            self._count[evicted] = 0
        for one in evicted.tolist():
            del self._ids[self._keys[one]]
        ids[new] = np.concatenate([fresh, evicted])
        self._keys += [None] * len(fresh)
        for place in new.tolist():
            self._ids[names[place]] = int(ids[place])
            self._keys[ids[place]] = names[place]

    def _evicted(self, count: int, kept: HostArray) -> HostArray:
        """The rows whose keys lose them, none of those that are kept."""
        if count <= 0:
            return np.zeros(0, np.int32)
        free = np.ones(len(self._keys), bool)
        free[kept] = False
        rows = np.flatnonzero(free)
        by = (self._last[rows],) if self._evict == "oldest" else (self._last[rows], self._count[rows])
        return rows[np.lexsort(by)[:count]].astype(np.int32)

    def get_state(self) -> dict[str, Any]:
        """Returns the keys and when they came, for a checkpoint."""
        taken = len(self._keys)
        last, count = self._last[:taken].tolist(), self._count[:taken].tolist()
        return {"keys": list(self._keys), "last": last, "count": count, "calls": self._calls}

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what `get_state` returned, of a table that has as many rows or fewer.

        Raises:
          ArgumentError: there are more keys than rows.
        """
        keys, rows = state["keys"], self._table.shape[0]
        if len(keys) > rows:
            raise ArgumentError(
                f"a vocabulary of {len(keys):,} keys was saved, and {self._table.name} has {rows:,} rows. HINT: make "
                "the table as large as it was."
            )
        self._keys, self._ids = list(keys), {key: number for number, key in enumerate(keys)}
        self._last[:], self._count[:] = 0, 0
        self._last[: len(keys)], self._count[: len(keys)] = state["last"], state["count"]
        self._calls = state["calls"]
