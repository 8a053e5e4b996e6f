"""Finds the values of a checkpoint in what the user names: variables, optimizers, iterators, models and nests."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import jax
import numpy as np

from jaxtribute._src.core.checkpoint.forms import Spec
from jaxtribute._src.core.checkpoint.leaves import CellLeaf, Leaf, VariableLeaf
from jaxtribute._src.core.checkpoint.state import Key, adapter_of, slot_key
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.optimizer.optimizer import Optimizer
from jaxtribute._src.core.types import HostArray, Nest
from jaxtribute._src.core.values.copies import SpareMemory
from jaxtribute._src.core.values.stored import Lease
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentError, ArgumentTypeError

_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_NUMBERS = (bool, int, float)


class Named:
    """An object that keeps others by name, as a checkpoint does; within a checkpoint the names go on below its own."""

    _trackables: dict[str, Any]


@dataclass
class Contents:
    """Contents of a checkpoint.

    Attributes:
      leaves: the values by their keys, the parts of each key joined with dots.
      iterators: objects with a position, likewise.
      rebuilds: calls that put nests together again once their arrays have new values; each returns what undoes it.
    """

    leaves: dict[str, Leaf] = field(default_factory=dict[str, Leaf])
    iterators: dict[str, Any] = field(default_factory=dict[str, Any])
    rebuilds: list[Callable[[], Callable[[], None]]] = field(default_factory=list[Callable[[], Callable[[], None]]])

    def snapshots(self, memory: SpareMemory) -> tuple[dict[str, Spec], dict[str, Lease | HostArray]]:
        """The specs of all values, and the values of those with elements; call it while no step can write them.

        Args:
          memory: serves copies of values that have to be made before they are written.
        """
        specs: dict[str, Spec] = {}
        values: dict[str, Lease | HostArray] = {}
        for name, leaf in self.leaves.items():
            specs[name] = leaf.spec
            if leaf.spec.size:
                values[name] = value = leaf.snapshot()
                if isinstance(value, Lease):
                    value.memory = memory
        return specs, values


def collect(trackables: dict[str, Any], replace: Callable[[str, Any], None]) -> Contents:
    """Finds all values.

    Args:
      trackables: what to look through, by name.
      replace: takes a name and the nest to put in the place of the old one, whose arrays were restored.

    Raises:
      ArgumentTypeError: a trackable without any state.
      ArgumentError: two values would have one name.
    """
    walk = _Walk()
    for name, value in trackables.items():
        before = walk.count
        walk.trackable((name,), value, partial(replace, name))
        if walk.count == before:
            raise ArgumentTypeError(
                f"{name}={value!r} of type {type(value).__name__} holds nothing that a checkpoint could keep. HINT: "
                "pass variables, optimizers, distributed iterators, models, nests of arrays or numbers, or objects "
                "with variables among their attributes."
            )
    return walk.found


class _Walk:
    """Goes through objects, each once."""

    def __init__(self) -> None:
        self.found = Contents()
        self.count = 0
        self._seen: dict[int, Any] = {}

    def trackable(self, named: Key, value: Nest, replace: Callable[[Any], None]) -> None:
        """A named value; of nests the plain arrays count, too."""
        if self._stateful(named, value):
            return
        # JAX would take a variable apart into its array, and lose that it is one.
        leaves, tree = jax.tree.flatten_with_path(value, is_leaf=self._whole)
        cells: list[Any] = [leaf for _, leaf in leaves]
        plain = 0
        for place, (path, leaf) in enumerate(leaves):
            key = (*named, *map(_part, path))
            if _is_array(leaf):
                plain += 1
                self._add(key, cell(cells, place))
            elif not self._stateful(key, leaf):
                self._attributes(key, leaf)
        if plain:
            # Arrays and numbers cannot change in place, so the whole nest is built again around the restored ones.
            def rebuild() -> Callable[[], None]:
                replace(tree.unflatten(cells))
                return lambda: replace(value)

            self.found.rebuilds.append(rebuild)

    def _slots(self, key: Key, optimizer: Optimizer) -> None:
        for slot in optimizer.variables:
            self._add((*key, *slot_key(slot.name)), VariableLeaf(slot))

    def _named(self, key: Key, value: Named) -> None:
        inside = value._trackables  # pyright: ignore[reportPrivateUsage]
        for name, each in inside.items():
            self.trackable((*key, name), each, partial(inside.__setitem__, name))

    def _stateful(self, key: Key, value: Nest) -> bool:
        """Takes a value that is known to have state; returns whether it is one."""
        if isinstance(value, Variable):
            if self._first_time(value):
                self._add(key, VariableLeaf(value))
        elif isinstance(value, Named):
            if self._first_time(value):
                self._named(key, value)
        elif isinstance(value, Optimizer):
            if self._first_time(value):
                self._slots(key, value)
        elif callable(getattr(value, "get_state", None)) and callable(getattr(value, "set_state", None)):
            if self._first_time(value):
                self._check(".".join(key))
                self.found.iterators[".".join(key)] = value
        elif (adapter := adapter_of(value)) is not None:
            if self._first_time(value):
                for path, leaf in adapter.leaves(value):
                    self._add((*key, *path), leaf)
        else:
            return False
        return True

    def _attributes(self, key: Key, value: object) -> None:
        """Looks for variables among the attributes of an object of the user's."""
        attributes = getattr(value, "__dict__", None)
        module = type(value).__module__.partition(".")[0]
        if isinstance(value, _OPAQUE) or not isinstance(attributes, dict) or module in _NOT_OURS:
            return
        if not self._first_time(value):
            return
        # Plain arrays among the attributes do not count: nobody could tell state from a table that the object was made
        # with.
        for name, attribute in cast("dict[str, Any]", attributes).items():
            if self._stateful((*key, name), attribute):
                continue
            for path, leaf in jax.tree.leaves_with_path(attribute, is_leaf=self._whole):
                below = (*key, name, *map(_part, path))
                if not _is_array(leaf) and not self._stateful(below, leaf):
                    self._attributes(below, leaf)

    @staticmethod
    def _whole(value: object) -> bool:
        """True if a value is not to be taken apart as a nest, though JAX could."""
        return isinstance(value, Variable) or adapter_of(value) is not None

    def _first_time(self, value: object) -> bool:
        self.count += 1
        # The objects are kept, not their ids alone: those of one that is garbage may be given to the next.
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = value
        return True

    def _add(self, key: Key, leaf: Leaf) -> None:
        self.count += 1
        self._check(".".join(key))
        self.found.leaves[".".join(key)] = leaf

    def _check(self, name: str) -> None:
        if name in self.found.leaves or name in self.found.iterators:
            raise ArgumentError(
                f"two values of the checkpoint would be named {name!r}. HINT: rename one of the attributes, keys or "
                "variables on the way to them."
            )


# The attributes of these libraries' objects are not state of the program.
_NOT_OURS = frozenset({"jaxtribute", "jax", "jaxlib", "numpy", "optax", "grain", "orbax", "builtins"})


def cell(cells: Any, place: Any) -> CellLeaf:
    """The leaf of what a list or a dict has at a place."""
    return CellLeaf(lambda: cells[place], lambda value: cells.__setitem__(place, value))


def _is_array(value: object) -> bool:
    kinds = (jax.Array, np.ndarray, np.generic, *_NUMBERS)
    return isinstance(value, kinds) and not isinstance(value, Tracer) and str(getattr(value, "dtype", "")) != "object"


def _part(key: object) -> str:
    """One step of a path into a nest, as a name."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
