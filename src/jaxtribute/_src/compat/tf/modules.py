"""`tf.Module`: an object that knows the variables in its attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxtribute._src.values.variable import Variable


class Module:
    """Collects the variables and modules that its attributes hold, at any depth of lists, tuples and dictionaries.

    Args:
      name: a name; by default that of the class in lower case.

    Source: `tf.Module`.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name or type(self).__name__.lower()

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables: those of the module by attribute name, then those of the modules in it."""
        own = [leaf for leaf in _leaves(self) if isinstance(leaf, Variable)]
        below = [variable for module in self.submodules for variable in module._own_variables()]
        return tuple(dict.fromkeys([*own, *below]))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that optimizers should update."""
        return tuple(variable for variable in self.variables if variable.trainable)

    @property
    def submodules(self) -> tuple[Module, ...]:
        """The modules in it, at any depth, nearest first."""
        found: dict[Module, None] = {}
        waiting: list[Module] = [self]
        while waiting:
            below = [leaf for leaf in _leaves(waiting.pop(0)) if isinstance(leaf, Module)]
            new = [module for module in dict.fromkeys(below) if module not in found and module is not self]
            found.update(dict.fromkeys(new))
            waiting += new
        return tuple(found)

    def _own_variables(self) -> list[Variable]:
        return [leaf for leaf in _leaves(self) if isinstance(leaf, Variable)]


def _leaves(module: Module) -> Iterator[Any]:
    for _, value in sorted(vars(module).items()):
        yield from _inside(value)


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _inside(part)
    elif isinstance(value, dict):
        for _, part in sorted(value.items(), key=lambda item: str(item[0])):
            yield from _inside(part)
    else:
        yield value
