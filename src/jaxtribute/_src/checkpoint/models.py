"""Models of other libraries, and `jd.Model`: which of their objects hold state, and where."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from jaxtribute._src.checkpoint.leaves import CellLeaf, Leaf, VariableLeaf
from jaxtribute._src.types import Foreign

Key = tuple[str, ...]
"""A value's place below its trackable: attributes, keys and indices, from the top down."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """Adapter to a library's way of keeping state.

    Attributes:
      library: the module that a program has loaded if it uses the library.
      kinds: names in that module of the classes whose objects hold state.
      leaves: the state's values with their keys, each once, in an order that is the same in every process.
    """

    library: str
    kinds: tuple[str, ...]
    leaves: Callable[[Foreign], Iterable[tuple[Key, Leaf]]]

    def accepts(self, value: object) -> bool:
        """True if a value is one of the library's objects that hold state."""
        # Never imported from here: a program that has not loaded the library holds none of its objects.
        module = sys.modules.get(self.library)
        # While the library is being imported its classes may not be there yet.
        found = tuple(getattr(module, kind) for kind in self.kinds if hasattr(module, kind))
        return isinstance(value, found)


def adapter_of(value: object) -> Adapter | None:
    """The adapter that takes `value`, if any does."""
    return next((adapter for adapter in _ADAPTERS if adapter.accepts(value)), None)


def slot_key(name: str) -> Key:
    """The place of an optimizer's slot, from the slot's name."""
    return tuple(name.removesuffix(":0").split("/"))


def _of_model(model: Foreign) -> Iterator[tuple[Key, Leaf]]:
    """Variables by their paths in the model, then the slots of its optimizer."""
    for path, variable in model.named_variables():
        yield path, VariableLeaf(variable)
    for slot in model.optimizer.variables if model.optimizer is not None else ():
        yield ("optimizer", *slot_key(slot.name)), VariableLeaf(slot)


def _of_nnx(root: Foreign) -> Iterator[tuple[Key, Leaf]]:
    """Variables of the object's graph; one that several objects share comes once."""
    nnx = sys.modules["flax.nnx"]
    found = [((), root)] if isinstance(root, nnx.Variable) else nnx.iter_graph(root)
    for path, value in found:
        if isinstance(value, nnx.Variable):
            yield tuple(map(str, path)), CellLeaf(value.get_value, value.set_value)


def _of_keras(root: Foreign) -> Iterator[tuple[Key, Leaf]]:
    """Variables of a model and of its optimizer, or those of a layer, a metric or an optimizer."""
    keras = sys.modules["keras"]
    if isinstance(root, keras.Variable):
        yield (), _keras_leaf(root)
        return
    yield from _numbered((), root.variables)
    optimizer = getattr(root, "optimizer", None) if isinstance(root, keras.Model) else None
    if optimizer is not None:
        yield from _numbered(("optimizer",), optimizer.variables)


def _numbered(prefix: Key, variables: Iterable[Foreign]) -> Iterator[tuple[Key, Leaf]]:
    """Names that do not depend on how many models were made before, as Keras's own paths do."""
    for place, variable in enumerate(variables):
        name = variable.name.rpartition("_")[2] if prefix else variable.name
        yield (*prefix, f"{place}_{name}"), _keras_leaf(variable)


def _keras_leaf(variable: Foreign) -> Leaf:
    stored = getattr(variable, "stored", None)  # under a strategy
    if stored is not None:
        return VariableLeaf(stored)
    return CellLeaf(lambda: variable.value, variable.assign)


_ADAPTERS = (
    Adapter("jaxtribute._src.integrations.model", ("Model",), _of_model),
    Adapter("flax.nnx", ("Pytree", "Variable"), _of_nnx),
    Adapter("keras", ("Layer", "Optimizer", "Metric", "Variable"), _of_keras),
)
