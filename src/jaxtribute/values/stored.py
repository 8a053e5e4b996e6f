"""`StoredArray`: the array behind a variable, which a step may give up and the user may hold."""

from __future__ import annotations

import threading

import jax

lent: set[int] = set()
"""Ids of variables whose array the user may hold: it must be copied before it is donated."""

_leases: dict[int, Lease] = {}
"""Those of `lent` whose array only a save holds, which gives it back when it has written it."""

updating = threading.RLock()
"""Held while a step gives up variables' arrays and puts new ones in place: no other thread may read in between."""


class Lease:
    """A variable's array, lent until it is given back; a step that comes first leaves it and goes on with a copy.

    Args:
      array: the array.
      key: the variable's id; without it the array is nobody else's.
    """

    def __init__(self, array: jax.Array, key: int = 0) -> None:
        self._array: jax.Array | None = array
        self._key = key

    @property
    def array(self) -> jax.Array:
        """What is lent, until it is given back."""
        assert self._array is not None
        return self._array

    def give_back(self) -> None:
        """Lets steps donate the array again, if it is still the variable's and nobody else holds it."""
        with updating:
            self._array = None
            if _leases.get(self._key) is self:
                del _leases[self._key]
                lent.discard(self._key)


class StoredArray:
    """Base of variables, for frames, which alone know when the stored array may be used."""

    _data: jax.Array

    @property
    def stored(self) -> jax.Array:
        """The stored global array, to ask for its shape or placement only: a later step may donate it."""
        return self._data

    def peek(self) -> jax.Array:
        """The stored global array, remembered as lent so that a later step copies it before donating it."""
        with updating:
            lent.add(id(self))
            _leases.pop(id(self), None)
            return self._data

    def lease(self) -> Lease:
        """Lends the stored global array for a while, to be read in another thread."""
        with updating:
            key = id(self)
            lease = Lease(self._data, key)
            if key not in lent:
                lent.add(key)
                _leases[key] = lease
            else:
                _leases.pop(key, None)  # the user holds it, or another save
            return lease

    def bind(self, array: jax.Array) -> None:
        """Replaces the stored global array by one that nobody else holds."""
        self._data = array
        _no_longer_lent(id(self))

    def donation(self) -> jax.Array:
        """The stored array, ready to be given up: a copy if the user may still hold it."""
        key = id(self)
        if key in lent:
            _no_longer_lent(key)
            self._data = self._data.copy()
        return self._data

    def __del__(self) -> None:
        if lent is not None:  # pyright: ignore[reportUnnecessaryComparison] (None while Python shuts down)
            _no_longer_lent(id(self))


def _no_longer_lent(key: int) -> None:
    lent.discard(key)
    _leases.pop(key, None)
