"""`StoredArray`: the array behind a variable, which a step may give up and the user may hold.

There is no number of a version: an array never changes, so whoever keeps one and compares it with the stored one knows
whether the variable has been written (`EagerStep`, `LockstepRun`, `InTrace.once`, `central.plan`).
"""

from __future__ import annotations

# What a variable's slot holds is known in this module alone.
# pyright: reportPrivateUsage=false
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import jax

from jaxtribute._src.core.traced_reads import traced_reads

if TYPE_CHECKING:
    from jaxtribute._src.core.values.copies import HostCopy, SpareMemory

updating: threading.RLock = threading.RLock()
"""Held while a step gives up variables' arrays and puts new ones in place: no other thread may read in between."""


class Slot:
    """A place for an array, or for what a step gives."""

    # What is in a slot is replaced without any Python; see `set_slot`.
    __slots__ = ("_data",)

    _data: Any


set_slot: Callable[[Slot, Any], None] = Slot._data.__set__  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage, reportUnknownVariableType]
"""Puts something into a slot, without any Python."""

replace: Callable[[Iterable[None]], None] = deque[None](maxlen=0).extend
"""Goes through `map(set_slot, slots, arrays)`: puts all arrays into their slots in one call of C.

No signal's handler runs in it. Where `arrays` is an iterator of C that calls a compiled program, the program is called
in the same one. What is put into a variable's slot takes it out of its group: `release` it before.
"""


class Group(Slot):
    """The arrays of all variables that one program writes, in the list that the program has given them in.

    The program takes the list and gives the next one: a step need not look at the variables, each of which holds its
    `Place` in the group. The slot holds what the program has given: the list, and behind it the step's results.
    """

    __slots__ = ("_places", "inputs", "whole")

    def __init__(self) -> None:
        self._data = [[]]
        self._places: list[Place] = []
        self.inputs: tuple[Any, ...] | None = None
        """The inputs of a call of the program while it is under way; else None."""
        self.whole = False
        """True if the list is of the program's variables, all of them; False once another program has taken one."""

    @property
    def arrays(self) -> list[Any]:
        """The arrays, in the order of the program's variables."""
        return self._data[0]

    def gather(self, variables: Sequence[StoredArray]) -> None:
        """Takes the arrays of variables in, from the groups that they are in now; `updating` is to be held."""
        # Wherever a signal ends this, each variable holds its array, or a place where its array lies.
        release(variables)
        self._data = [arrays_of(variables)]
        if len(self._places) != len(variables):
            self._places = [Place(self, index) for index in range(len(variables))]
        for variable, place in zip(variables, self._places, strict=True):
            variable._data = place
        self.whole = True


class Place:
    """The place of a variable's array in a group."""

    __slots__ = ("group", "index")

    def __init__(self, group: Group, index: int) -> None:
        self.group, self.index = group, index


def release(variables: Iterable[StoredArray]) -> None:
    """Gives variables their arrays back, out of the groups that they are in; `updating` is to be held."""
    for variable in variables:
        held = variable._data
        if type(held) is Place:
            held.group.whole = False
            arrays = held.group.arrays
            variable._data = arrays[held.index]
            arrays[held.index] = None


def arrays_of(variables: Iterable[StoredArray]) -> list[Any]:
    """The stored arrays of variables."""
    # Written out, as programs that only read variables do this at every step.
    return [
        held if type(held := variable._data) is not Place else held.group._data[0][held.index] for variable in variables
    ]


class StoredArray(Slot):
    """Base of variables, for executors, which alone know when the stored array may be used."""

    __slots__ = ()

    @property
    def stored(self) -> jax.Array:
        """The stored global array, to ask for its shape or placement only: a later step may donate it."""
        held = self._data
        array = held.group.arrays[held.index] if type(held) is Place else held
        if array is None:  # another thread has taken it out of its group between the two looks
            with updating:
                held = self._data
                array = held.group.arrays[held.index] if type(held) is Place else held
        return array

    def peek(self) -> jax.Array:
        """The stored global array, remembered as lent so that a later step copies it before donating it."""
        with updating:
            lend(id(self))
            return self.stored

    def lease(self) -> Lease:
        """Lends the stored global array for a while, to be read in another thread."""
        with updating:
            return lease(id(self), self.stored)

    def bind(self, array: jax.Array) -> None:
        """Replaces the stored global array by one that nobody else holds."""
        with updating:
            if id(self) in traced_reads.stored:
                traced_reads.renew(self)
            held = getattr(self, "_data", None)
            if type(held) is Place:
                held.group.arrays[held.index] = array
            else:
                self._data = array
            if id(self) in lent:
                recall(id(self))

    def __del__(self) -> None:
        held = getattr(self, "_data", None)
        if Place is not None and type(held) is Place:  # pyright: ignore[reportUnnecessaryComparison] (None at shutdown)
            held.group.arrays[held.index] = None  # the group may live on
        forget = recall
        if forget is not None and id(self) in lent:  # pyright: ignore[reportUnnecessaryComparison] (None at shutdown)
            forget(id(self))
        if forget is not None and id(self) in traced_reads.read:  # pyright: ignore[reportUnnecessaryComparison]
            traced_reads.read.discard(id(self))


def prepare_donation(variables: Iterable[StoredArray]) -> None:
    """Makes sure that nobody holds the variables' arrays, which a step will give up: copies those that somebody may."""
    held = [variable for variable in variables if id(variable) in lent]
    leases = [recall(id(variable)) for variable in held]
    free = iter(Lease.spare([lease for lease in leases if lease is not None]))
    for variable, lease in zip(held, leases, strict=True):
        # Without a lease the user holds the array, and nobody knows for how long.
        if lease is None or not next(free):
            variable.bind(variable.stored.copy())


lent: set[int] = set()
"""Ids of variables whose array somebody may hold: it must be copied before it is donated."""

_leases: dict[int, Lease] = {}
"""Those of `lent` whose array only a save holds, which gives it back when it has written it."""

_lending = threading.RLock()
"""Held while `lent` and `_leases` change together. Never for a whole step: a save gives back in between.

A variable that is deleted in the middle of it, in the same thread, takes it once more."""

_PATIENCE_S = 1.0
"""Seconds that a step waits for arrays that are being written, a small part of all, before it copies them itself."""


class Lease:
    """An array, lent until it is given back. `spare` says what becomes of it where a step needs the memory.

    Args:
      array: the array.
      key: the variable's id; without it the array is nobody else's.
    """

    shape: tuple[int, ...]
    dtype: Any
    nbytes: int

    def __init__(self, array: jax.Array, key: int = 0) -> None:
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes
        self._array: jax.Array | None = array
        self._copy: HostCopy | None = None
        self.memory: SpareMemory | None = None
        """Source of a copy's memory, which it goes back to; new memory by default."""
        self._key = key
        self._taken = False
        self._lock = threading.Lock()
        self._returned = threading.Event()

    def take(self) -> jax.Array:
        """The array, or the copy of it, to be read until `give_back`."""
        with self._lock:
            self._taken = True
            if self._array is not None:
                return self._array
            assert self._copy is not None
            return self._copy.array()

    def give_back(self) -> None:
        """Lets steps donate the array again, if it is still the variable's and nobody else holds it."""
        with self._lock:
            if self._copy is not None:
                self._copy.free()
            self._array = self._copy = None
        self._returned.set()
        with _lending:
            # Another one, if the variable was bound again or lent to the user meanwhile.
            if _leases.get(self._key) is self:
                del _leases[self._key]
                lent.discard(self._key)

    @staticmethod
    def spare(leases: Sequence[Lease]) -> list[bool]:
        """Has saves go on with copies, as a step needs the arrays: all at once, on all cores, while the saves wait.

        Only of arrays in the host's memory that no save has taken yet. Those are soon in their file, so they are waited
        for, though not for long.

        Args:
          leases: those whose arrays a step will write over.

        Returns:
          For each, whether the array is free now; otherwise a save still reads it, and the step needs a copy itself.
        """
        free: dict[Lease, jax.Array] = {}
        read: list[Lease] = []
        with ExitStack() as held:
            # No loop here: what a signal raises where one goes back would leave the locks held.
            Lease._hold(leases, held, free, read)
            Lease._copy_all(free)
        deadline = time.monotonic() + _PATIENCE_S
        for lease in read:
            lease._returned.wait(max(0.0, deadline - time.monotonic()))
        return [lease in free or lease._returned.is_set() for lease in leases]

    @staticmethod
    def _hold(leases: Sequence[Lease], held: ExitStack, free: dict[Lease, jax.Array], read: list[Lease]) -> None:
        """Locks all, and sorts those in the host's memory into what nobody reads and what a save does."""
        for lease in leases:
            held.enter_context(lease._lock)
            # An accelerator's array is copied by the step itself, on the device, which is faster than bringing it home.
            if lease._array is not None and all(device.platform == "cpu" for device in lease._array.devices()):
                if lease._taken:
                    read.append(lease)
                else:
                    free[lease] = lease._array

    @staticmethod
    def _copy_all(free: dict[Lease, jax.Array]) -> None:
        # Many programs never need it, and starts should be quick.
        from jaxtribute._src.core.values.copies import SpareMemory, copied

        new = SpareMemory()
        spares = [new if lease.memory is None else lease.memory for lease in free]
        for lease, copy in zip(free, copied(list(free.values()), spares), strict=True):
            lease._array, lease._copy = None, copy


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
