"""`StoredArray`: the array behind a variable, which a step may give up and the user may hold."""

from __future__ import annotations

import threading

import jax

lent: set[int] = set()
"""Ids of variables whose array the user may hold: it must be copied before it is donated."""

updating = threading.RLock()
"""Held while a step gives up variables' arrays and puts new ones in place: no other thread may read in between."""


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
            return self._data

    def bind(self, array: jax.Array) -> None:
        """Replaces the stored global array by one that nobody else holds."""
        self._data = array
        lent.discard(id(self))

    def donation(self) -> jax.Array:
        """The stored array, ready to be given up: a copy if the user may still hold it."""
        key = id(self)
        if key in lent:
            lent.discard(key)
            self._data = self._data.copy()
        return self._data

    def __del__(self) -> None:
        if lent is not None:  # pyright: ignore[reportUnnecessaryComparison] (None while Python shuts down)
            lent.discard(id(self))
