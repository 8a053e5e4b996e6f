"""Objects of other libraries that hold state: an add-on registers an adapter to each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from jaxtribute._src.core.checkpoint.leaves import CellLeaf, Leaf, VariableLeaf
from jaxtribute._src.core.points import STATEFUL
from jaxtribute._src.core.types import Foreign
from jaxtribute._src.core.values.variable import Variable

Key = tuple[str, ...]
"""A value's place below its trackable: attributes, keys and indices, from the top down."""
Cell = tuple[Callable[[], Any], Callable[[Any], None]]
"""A value of another library: how it is read, and how it is set."""


@dataclass(frozen=True, slots=True)
class StateAdapter:
    """Adapter to a library's way of keeping state.

    Attributes:
      library: the module that a program has loaded if it uses the library.
      kinds: names in that module of the classes whose objects hold state.
      values: the state's variables with their keys, each once, in an order that is the same in every process; in place
        of a variable, a function that returns the value and a function that sets it.
    """

    library: str
    kinds: tuple[str, ...]
    values: Callable[[Foreign], Iterable[tuple[Key, Variable | Cell]]]

    def leaves(self, value: Foreign) -> Iterable[tuple[Key, Leaf]]:
        """The values of one object's state, as a checkpoint keeps them."""
        for key, entry in self.values(value):
            yield key, VariableLeaf(entry) if isinstance(entry, Variable) else CellLeaf(*entry)

    @staticmethod
    def slot_key(name: str) -> Key:
        """The key of an optimizer's slot, from the slot's name."""
        return slot_key(name)

    def accepts(self, value: object) -> bool:
        """True if a value is one of the library's objects that hold state."""
        # Never imported from here: a program that has not loaded the library holds none of its objects.
        module = sys.modules.get(self.library)
        # While the library is being imported its classes may not be there yet.
        kinds = tuple(getattr(module, kind) for kind in self.kinds if hasattr(module, kind))
        return isinstance(value, kinds)


def adapter_of(value: object) -> StateAdapter | None:
    """The adapter that takes `value`, if any does."""
    return next((adapter for adapter in STATEFUL.entries() if adapter.accepts(value)), None)


def slot_key(name: str) -> Key:
    """The place of an optimizer's slot, from the slot's name."""
    return tuple(name.removesuffix(":0").split("/"))
