"""Arrays of variables on loan: held by the user, or by a save that writes them while the training goes on."""

from __future__ import annotations

import mmap
import threading

import jax
import numpy as np

lent: set[int] = set()
"""Ids of variables whose array somebody may hold: it must be copied before it is donated."""

_leases: dict[int, Lease] = {}
"""Those of `lent` whose array only a save holds, which gives it back when it has written it."""

_lending = threading.Lock()
"""Held while `lent` and `_leases` change together. Never for a whole step: a save gives back in between."""


class Lease:
    """An array, lent until it is given back.

    Where a step needs the memory first, it goes on with a copy of the array; or, where arrays lie in the host's memory
    and nobody reads this one yet, the lease does: one copy then, however many devices have the array, and in memory
    that goes back to the system.

    Args:
      array: the array.
      key: the variable's id; without it the array is nobody else's.
    """

    def __init__(self, array: jax.Array, key: int = 0) -> None:
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes
        self._array: jax.Array | None = array
        self._copy: np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None = None
        self._key = key
        self._taken = False
        self._lock = threading.Lock()

    def take(self) -> jax.Array:
        """The array, or the copy of it, to be read until `give_back`."""
        with self._lock:
            self._taken = True
            if self._array is not None:
                return self._array
            assert self._copy is not None
            return jax.device_put(self._copy, jax.local_devices(backend="cpu")[0])

    def let_go(self) -> bool:
        """Keeps a copy instead of the array. Returns whether it did: not if it is read already, or lies elsewhere."""
        with self._lock:
            array = self._array
            if self._taken or array is None or not array.is_fully_addressable or _elsewhere(array):
                return False
            self._copy = _copied(array)
            self._array = None
            return True

    def give_back(self) -> None:
        """Lets steps donate the array again, if it is still the variable's and nobody else holds it."""
        with self._lock:
            self._array = self._copy = None
        with _lending:
            if _leases.get(self._key) is self:
                del _leases[self._key]
                lent.discard(self._key)


def lend(key: int) -> None:
    """Remembers that the user may hold the array of the variable with this id."""
    with _lending:
        lent.add(key)
        _leases.pop(key, None)


def lease(key: int, array: jax.Array) -> Lease:
    """Lends the array of the variable with this id to a save."""
    made = Lease(array, key)
    with _lending:
        if key in lent:
            _leases.pop(key, None)  # the user holds it, or another save
        else:
            lent.add(key)
            _leases[key] = made
    return made


def recall(key: int) -> Lease | None:
    """Forgets the loan of the variable with this id; returns the lease, if only a save holds the array."""
    with _lending:
        lent.discard(key)
        return _leases.pop(key, None)


def _elsewhere(array: jax.Array) -> bool:
    return any(device.platform != "cpu" for device in array.devices())


def _copied(array: jax.Array) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """The whole array in memory of its own, in large pages where the system has them."""
    if not array.nbytes:
        return np.asarray(array).copy()
    memory = mmap.mmap(-1, array.nbytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, array.dtype).reshape(array.shape)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            whole[shard.index] = np.asarray(shard.data)
    return whole
