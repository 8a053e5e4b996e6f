"""`StoredArray`: the array behind a variable, which a step may give up and the user may hold."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import jax

from jaxtribute._src.traced_reads import traced_reads
from jaxtribute._src.values import lending
from jaxtribute._src.values.lending import Lease, lent

updating = threading.RLock()
"""Held while a step gives up variables' arrays and puts new ones in place: no other thread may read in between."""


class Slot:
    """A place for an array, or for what a step gives besides arrays."""

    # A slot is read and written faster than an attribute in a dictionary; every step does both for every variable.
    __slots__ = ("_data",)

    _data: jax.Array


set_slot: Callable[[Slot, jax.Array], None] = Slot._data.__set__  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage, reportUnknownVariableType]
"""Puts an array into a slot, without any Python."""

replace: Callable[[Iterable[None]], None] = deque[None](maxlen=0).extend
"""Goes through `map(set_slot, slots, arrays)`: puts all arrays into their slots in one call of C.

No signal's handler runs in it. Where `arrays` is an iterator of C that calls a compiled program, the program is called
in the same one.
"""


_content = attrgetter("_data")


def replace_many(slots: Sequence[Slot], calls: Iterator[Sequence[jax.Array]]) -> None:
    """Puts arrays into many slots in a loop of Python, which is faster; one call of C ends it if it is cut short.

    Args:
      slots: where the arrays go.
      calls: an iterator of C that gives all of them at once.
    """
    given = Slot()
    given._data = None  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    rest = map(set_slot, slots, chain.from_iterable(map(_content, (given,))))
    try:
        replace(map(set_slot, (given,), calls))  # pyright: ignore[reportArgumentType]
        arrays: Any = given._data  # pyright: ignore[reportPrivateUsage]
        for slot, array in zip(slots, arrays, strict=True):
            slot._data = array  # pyright: ignore[reportPrivateUsage]
    except BaseException:
        # Nothing is called before this: a second signal is heard when all is in place.
        if given._data is not None:  # pyright: ignore[reportPrivateUsage, reportUnnecessaryComparison]
            replace(rest)
        raise


class StoredArray(Slot):
    """Base of variables, for executors, which alone know when the stored array may be used."""

    __slots__ = ()

    @property
    def stored(self) -> jax.Array:
        """The stored global array, to ask for its shape or placement only: a later step may donate it."""
        return self._data

    def peek(self) -> jax.Array:
        """The stored global array, remembered as lent so that a later step copies it before donating it."""
        with updating:
            lending.lend(id(self))
            return self._data

    def lease(self) -> Lease:
        """Lends the stored global array for a while, to be read in another thread."""
        with updating:
            return lending.lease(id(self), self._data)

    def bind(self, array: jax.Array) -> None:
        """Replaces the stored global array by one that nobody else holds."""
        with updating:
            if id(self) in traced_reads.stored:
                traced_reads.renew(self)
            self._data = array
            if id(self) in lent:
                lending.recall(id(self))

    def __del__(self) -> None:
        recall = lending.recall
        if recall is not None and id(self) in lent:  # pyright: ignore[reportUnnecessaryComparison] (None at shutdown)
            recall(id(self))
        if recall is not None and id(self) in traced_reads.read:  # pyright: ignore[reportUnnecessaryComparison]
            traced_reads.read.discard(id(self))


def prepare_donation(variables: Iterable[StoredArray]) -> None:
    """Makes sure that nobody holds the variables' arrays, which a step will give up: copies those that somebody may."""
    held = [variable for variable in variables if id(variable) in lent]
    leases = [lending.recall(id(variable)) for variable in held]
    free = iter(Lease.spare([lease for lease in leases if lease is not None]))
    for variable, lease in zip(held, leases, strict=True):
        if lease is None or not next(free):
            variable.bind(variable.stored.copy())
