"""State of one parameter server: arrays with versions, and the operations that change them, in order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxtribute._src.addons.messaging.wire import Header
from jaxtribute._src.addons.parameter_servers.server.client import MOVE
from jaxtribute._src.addons.parameter_servers.server.shard_optimizer import ShardOptimizer, padded
from jaxtribute._src.addons.parameter_servers.server.staleness import OPTIMIZER
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import ArrayLike

Array = np.ndarray[Any, Any]

_OPTIMIZER = ("params", "places", "slots", "leaves", "owners")
"""The parts of a `ShardOptimizer`'s description, beside its code."""


@dataclass(slots=True)
class Entry:
    """One shard. A write replaces its `value` by a new array; only with `by_rows` is the array itself changed."""

    value: Any
    version: int = 1
    by_rows: bool = False
    """True if some rows are written at a time: the value is then a NumPy array that changes in place."""

    def host(self) -> Array:
        """The value for sending."""
        return self.value.copy() if self.by_rows else np.asarray(self.value)

    def replace(self, value: ArrayLike) -> None:
        """Takes a new value."""
        self.value, self.by_rows = value, False
        self.version += 1

    def rows(self) -> Array:
        """The value, to be written in place."""
        if not self.by_rows:
            self.value, self.by_rows = np.array(self.value), True
        return self.value


@dataclass
class Answer:
    """Answer to a request: a header and arrays."""

    header: Header = field(default_factory=dict[str, Any])
    arrays: list[Any] = field(default_factory=list[Any])


class Store:
    """The shards of one server.

    Args:
      optimizer_of: gives by an optimizer's id its transformation, the nest that it knows parameters in, and the
        settings of JAX that it computes under.
    """

    def __init__(self, optimizer_of: Callable[[int], Any]) -> None:
        self.entries: dict[int, Entry] = {}
        self.optimizers: dict[int, ShardOptimizer] = {}
        self._optimizer_of = optimizer_of
        self._applied: set[tuple[int, int]] = set()
        """Pushes of unfinished closures that have been applied, as (closure, number of the push in it)."""
        self._floor = 0
        """All closures below have ended, and will not push again."""

    # Requests.

    def exchange(self, header: Header, arrays: Sequence[Array]) -> Answer:
        """Applies the operations of a request, unless they have been, then reads what it asks for.

        The header's `ops` are `[kind, key, number of arrays, ...]`, `once` names the push, `pull` lists pairs of a key
        and the version that the caller has, `rows` lists keys of which the caller wants the rows in the next array.
        """
        given = iter(arrays)
        # Taken apart before it is known whether the push has been applied: the arrays of the reads come behind.
        ops = [(op, [next(given) for _ in range(op[2])]) for op in header.get("ops", ())]
        if self._admit(header.get("once"), header.get("floor", 0)):
            for op, values in ops:
                self._apply(op, values)
        versions: list[int] = []
        found: list[Any] = []
        for key, known in header.get("pull", ()):
            entry = self._entry(key)
            versions.append(entry.version)
            if entry.version != known:
                found.append(entry.host())
        found.extend(self._entry(key).value[next(given)] for key in header.get("rows", ()))
        return Answer({"v": versions}, found)

    def create(self, header: Header, arrays: Sequence[Array]) -> Answer:
        """Makes shards with the given values; those that exist already get them."""
        for key, value in zip(header["keys"], arrays, strict=True):
            if key in self.entries:
                # A request that is repeated after a server came back must not fail, nor begin the versions again.
                self.entries[key].replace(np.array(value))
            else:
                self.entries[key] = Entry(np.array(value))
        return Answer()

    def create_rows(self, key: int, value: Array) -> None:
        """Makes a shard of a value that was computed here."""
        self.entries[key] = Entry(value, by_rows=True)  # such tables are large, and written by rows

    def delete(self, header: Header, _: Sequence[Array]) -> Answer:
        """Forgets shards."""
        for key in header["keys"]:
            self.entries.pop(key, None)
        return Answer()

    def optimizer(self, header: Header, _: Sequence[Array]) -> Answer:
        """Makes an optimizer over shards that exist, and its slots unless they exist too."""
        made = ShardOptimizer(*self._optimizer_of(header["id"]), **{name: header[name] for name in _OPTIMIZER})
        params = [np.asarray(self._entry(key).value) for key in made.params]
        if all(key in self.entries for key in made.slots):
            made.adopt(params)
        else:
            for key, leaf in zip(made.slots, made.initial(params), strict=True):
                self.entries[key] = Entry(leaf)
        self.optimizers[header["id"]] = made
        return Answer()

    # State as a whole.

    def state(self, *, lent: bool = False) -> tuple[Header, list[Array]]:
        """Everything that another server needs to take this one's place, but for the optimizers' code.

        Args:
          lent: whether the arrays are used before anything here changes, so that none has to be copied.
        """
        header: Header = {"keys": [], "versions": [], "by_rows": [], "optimizers": []}
        # With the pushes that are in it: the closures of which they are may run again under the server that loads it.
        header |= {"applied": sorted(self._applied), "floor": self._floor}
        arrays: list[Array] = []
        for key, entry in self.entries.items():
            header["keys"].append(key)
            header["versions"].append(entry.version)
            if entry.by_rows:
                header["by_rows"].append(key)
            arrays.append(np.asarray(entry.value) if lent else entry.host())
        for id_, made in self.optimizers.items():
            header["optimizers"].append([id_, *(getattr(made, name) for name in _OPTIMIZER)])
        return header, arrays

    def load(self, header: Header, arrays: Iterable[Array]) -> None:
        """Takes a `state`; versions go on from the higher, so that no caller holds what is older for current.

        Arrays that can be written are taken as they are, one after the other, when what was here is gone.
        """
        old = {key: entry.version for key, entry in self.entries.items()}
        by_rows = set(header["by_rows"])
        self.entries = {}
        for key, version, value in zip(header["keys"], header["versions"], arrays, strict=True):
            own = value if value.flags.writeable else np.array(value)
            # A caller may have pulled a later version than that of the state which is loaded: it must not take it for
            # this one.
            self.entries[key] = Entry(own, max(version, old.get(key, 0)) + 1, by_rows=key in by_rows)
        self._applied = {(closure, number) for closure, number in header["applied"]}
        self._floor = header["floor"]
        self.optimizers = {}
        for id_, *described in header["optimizers"]:
            self.optimizer({"id": id_, **dict(zip(_OPTIMIZER, described, strict=True))}, ())

    # Operations.

    def _entry(self, key: int) -> Entry:
        if key not in self.entries:
            raise ArgumentError(
                f"there is no shard {key} among {len(self.entries)} on this server. "
                "HINT: the variable was deleted, or is another cluster's."
            )
        return self.entries[key]

    def _admit(self, once: Sequence[int] | None, floor: int) -> bool:
        """True if the operations of a push are still to be applied."""
        if floor > self._floor:
            self._floor = floor
            # Nobody pushes for these closures any more, so that their names need not be remembered.
            self._applied = {push for push in self._applied if push[0] >= floor}
        if once is None:
            return True
        push = (once[0], once[1])
        # A closure that runs again after its worker died repeats its pushes under the same names, in the same order.
        # Below the floor a worker that was given up may still be pushing for a closure that others have ended.
        if push[0] < self._floor or push in self._applied:
            return False
        self._applied.add(push)
        return True

    def _apply(self, op: Sequence[Any], values: list[Array]) -> None:
        kind = op[0]
        if kind == OPTIMIZER:
            self._optimize(self.optimizers[op[1]], op[3], values)
            return
        entry = self._entry(op[1])
        if kind == "assign":
            entry.replace(np.array(values[0]))
        elif kind == "add":
            self._dense(entry, values[0], np.add)
        elif kind == "sub":
            self._dense(entry, values[0], np.subtract)
        elif kind == MOVE:
            entry.replace(_moved(np.asarray(entry.value), *values))
        else:
            # In place: copying a table for a few of its rows would cost more than all the rest.
            _ROWS[kind](entry.rows(), values[0], values[1])
            entry.version += 1

    def _dense(self, entry: Entry, value: Array, function: np.ufunc) -> None:
        if entry.by_rows:
            # Values of this kind are copied where they are sent, and may therefore change in place.
            function(entry.value, value, out=entry.value)
            entry.version += 1
        else:
            old = np.asarray(entry.value)
            # What was sent of the old value may still be on its way; the message's own memory is free to be written.
            out = value if value.flags.writeable and value.dtype == old.dtype else None
            entry.replace(np.asarray(function(old, value, out=out), old.dtype))

    def _optimize(self, optimizer: ShardOptimizer, forms: Sequence[int], values: list[Array]) -> None:
        """One step. `forms` says for each shard whether its gradient is dense (1 array) or of some rows (2)."""
        given = iter(values)
        grads: list[_Gradient] = []
        for form in forms:
            if form == 1:
                grads.append(_Gradient.dense(next(given)))
            else:
                grads.append(_Gradient.rows(next(given), next(given)))
        places = list(grads)
        for owner in optimizer.owners:
            if owner is None:
                places.append(_WHOLE)
            else:  # a slot that belongs to a shard is read and written where its shard is
                places.append(grads[owner])
        entries = [self._entry(key) for key in (*optimizer.params, *optimizer.slots)]
        parts = [place.read(entry) for place, entry in zip(places, entries, strict=True)]
        count = len(grads)
        fresh, leaves = optimizer.update([grad.values for grad in grads], parts[count:], parts[:count])
        for place, entry, new in zip(places, entries, [*fresh, *leaves], strict=True):
            place.write(entry, new)


@dataclass(frozen=True, slots=True)
class _Gradient:
    """A gradient and where it applies: everywhere, or at the first `count` of the rows `ids`."""

    values: Any
    ids: Array | None = None
    count: int = 0

    @classmethod
    def dense(cls, values: Array) -> _Gradient:
        return cls(values)

    @classmethod
    def rows(cls, ids: Array, values: Array) -> _Gradient:
        where, rows = padded(ids, values)
        return cls(rows, where, len(ids))

    def read(self, entry: Entry) -> Any:
        return entry.value if self.ids is None else entry.rows()[self.ids]

    def write(self, entry: Entry, new: ArrayLike) -> None:
        if self.ids is None:
            entry.replace(new)
        else:
            entry.rows()[self.ids[: self.count]] = np.asarray(new)[: self.count]
            entry.version += 1


_WHOLE = _Gradient(None)


def _moved(now: Array, old: Array, new: Array) -> Array:
    """The new value if nobody else has written since `old` was read; otherwise the difference is added."""
    # An infinite value, or one much larger than the new one, has no difference that could be added.
    with np.errstate(all="ignore"):
        known = (now == old) | ((now != now) & (old != old))
        # Differences of flags mean nothing: the later one counts.
        added = new if now.dtype == np.bool_ else now + (new - old)
        return np.where(known, new, added).astype(now.dtype)


def _row_function(function: np.ufunc) -> Callable[[Array, Array, Array], None]:
    def write(rows: Array, ids: Array, values: Array) -> None:
        function.at(rows, ids, values)

    return write


def _set_rows(rows: Array, ids: Array, values: Array) -> None:
    rows[ids] = values


_ROWS: dict[str, Callable[[Array, Array, Array], None]] = {
    "scatter_add": _row_function(np.add),
    "scatter_sub": _row_function(np.subtract),
    "scatter_mul": _row_function(np.multiply),
    "scatter_div": _row_function(np.divide),
    "scatter_min": _row_function(np.minimum),
    "scatter_max": _row_function(np.maximum),
    "scatter_update": _set_rows,
}
