"""Libraries that must learn about strategies before one takes force: found if they are there, or waited for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Library:
    """A library, and what teaches it about strategies. An add-on registers one at `points.LIBRARIES`.

    Attributes:
      name: the module that is waited for.
      last: an attribute that the module binds late: without it the module is still being imported.
      connect: called once, when the library has been imported.
    """

    name: str
    last: str
    connect: Callable[[], None]

    def find(self) -> None:
        """Takes the library as it is, or waits for its import; imports nothing."""
        if getattr(sys.modules.get(self.name), self.last, None) is not None:
            self.connect()
        else:
            sys.meta_path.insert(0, Watcher(self.name, self.connect))


class Watcher:
    """Waits among the finders of `import` for a library, and leaves when it comes.

    Args:
      name: the module's name.
      connect: called when it has been imported.
    """

    def __init__(self, name: str, connect: Callable[[], None]) -> None:
        self._name, self._connect = name, connect

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The library's own spec, with `connect` called after its execution; None for all other modules."""
        if name != self._name:
            return None
        # Removed before the search: else later finders would be asked through this one again.
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._connect()

        loader.exec_module = exec_module
        return spec
