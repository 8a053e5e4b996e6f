"""`ProgramVariables`: the variables that one compiled program takes and gives back, and where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import Any

import jax
from jax.sharding import Sharding

from jaxtribute._src.core.execution.capture import Capture
from jaxtribute._src.core.jaxprs.core import ArrayImpl, constants
from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute._src.core.values.placing import own, put
from jaxtribute._src.core.values.stored import StoredArray
from jaxtribute._src.core.values.variable import Variable


class ProgramVariables:
    """The variables of a program that has been traced.

    Args:
      capture: what a trace has touched.
      home: the devices to run on; None for those of the arguments.
      before: the variables that the program takes already, if it grows by the trace.
    """

    def __init__(self, capture: Capture, home: ReplicaMesh | None, before: ProgramVariables | None = None) -> None:
        old_donated, old_kept = (before.donated, before.kept) if before else ([], [])
        executor = capture.executor
        self.donated: list[Variable] = list(dict.fromkeys([*old_donated, *executor.written]))
        """The variables that the program writes: their arrays are donated to it."""
        self.donated_ids = frozenset(map(id, self.donated))
        read = dict.fromkeys([*old_kept, *executor.inputs])
        self.kept: list[Variable] = [variable for variable in read if id(variable) not in self.donated_ids]
        """The variables that it only reads."""
        self.shared: list[jax.Array] = list(before.shared) if before else []
        """Arrays from around the function of which other workers hold parts: no constants can be made of them."""
        self.shared += [array for array in shared_of(capture) if not any(map(is_, self.shared, repeat(array)))]
        self.mesh: ReplicaMesh | None = executor.mesh or (before.mesh if before else None)
        self.home = home or (before.home if before else None) or executor.home
        both = [*self.donated, *self.kept]
        self.unplaced = [place for place, variable in enumerate(both) if variable.policy.mesh is None]
        """The places, among all of them, of those that belong to no strategy."""
        self._unplaced_ids = frozenset(id(both[place]) for place in self.unplaced)
        owners = [both[place].distribute_strategy.extended for place in self.unplaced]
        self._copied_to_all: set[int] = owners[0].copied_to_all if owners else set()

    @property
    def all(self) -> tuple[Variable, ...]:
        """All of them, those first that the program writes."""
        return (*self.donated, *self.kept)

    @property
    def must_move(self) -> bool:
        """True if a step first has to look where variables of no strategy lie, as the program has several devices."""
        if not self.unplaced:
            return False
        return self.mesh is not None or not self._copied_to_all.isdisjoint(self._unplaced_ids)

    @property
    def needs_home(self) -> bool:
        """True if no array is bound to a device: JAX would run the program on its default one."""
        return self.home is not None and not any(variable.stored.committed for variable in self.all)

    def target(self) -> Sharding | None:
        """Place of arguments and variables of no strategy; None if any will do."""
        home = self.mesh or self.home
        if home is not None:
            return home.replicated
        return next((v.stored.sharding for v in self.all if v.policy.mesh is not None), None)

    def placements(self) -> list[Sharding] | None:
        """Places of the new values, which are those of the variables; None if JAX decides.

        Left to itself the compiler may choose another place, and the next call would be compiled for that one.
        """
        target = self.target()  # once: it may look at every variable
        places: list[Sharding] = []
        for variable in self.donated:
            if variable.policy.mesh is None and target is not None:
                places.append(target)
            elif variable.stored.committed:
                places.append(variable.stored.sharding)
            else:
                return None
        return places

    def move(self, donated: Sequence[StoredArray], kept: Sequence[StoredArray]) -> None:
        """Brings those that belong to no strategy to the devices of the program.

        Args:
          donated: the variables that the program writes, or what holds their arrays in an eager step.
          kept: those that it reads, likewise.
        """
        target = self.target()
        for slot in self._unplaced_of(donated, kept):
            array = slot.stored
            if target is not None and len(target.device_set) > 1:
                if array.sharding != target:
                    slot.bind(own(array, target))
                    self._copied_to_all.add(id(slot))
            elif len(array.devices()) > 1:
                slot.bind(array.addressable_shards[0].data.copy())
                self._copied_to_all.discard(id(slot))

    def moved(
        self, leaves: Sequence[Any], donated: Sequence[StoredArray], kept: Sequence[StoredArray]
    ) -> list[Any] | None:
        """Brings arguments and variables of no strategy from other devices to the program's; None if none is away."""
        target = self.target()
        if target is None:
            return None

        def away(array: Numeric) -> bool:
            return isinstance(array, jax.Array) and array.committed and array.sharding.device_set != target.device_set

        stray = [slot for slot in self._unplaced_of(donated, kept) if away(slot.stored)]
        if not stray and not any(away(leaf) for leaf in leaves):
            return None
        for slot in stray:
            slot.bind(own(slot.stored, target))
        return [put(leaf, target) if away(leaf) else leaf for leaf in leaves]

    def _unplaced_of(self, donated: Sequence[StoredArray], kept: Sequence[StoredArray]) -> list[StoredArray]:
        both = (*donated, *kept)
        return [both[place] for place in self.unplaced]


def shared_of(capture: Capture) -> list[jax.Array]:
    """Returns the arrays from around a function of which other workers hold parts."""
    values = constants(capture.closed)
    return [value for value in values if isinstance(value, ArrayImpl) and not value.is_fully_addressable]
