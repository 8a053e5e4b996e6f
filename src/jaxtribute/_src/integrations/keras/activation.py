"""Finding Keras: the first scope or traced function teaches it about strategies, or its import after that."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from jaxtribute._src.points import BEFORE_STRATEGIES

_NAME = "keras"


def _look() -> None:
    """Takes Keras as it is, or waits for its import: what the first scope or traced function does."""
    # A module without a version is still being imported, and what would be replaced may not be there yet.
    if getattr(sys.modules.get(_NAME), "__version__", None) is not None:
        connect()
    else:
        sys.meta_path.insert(0, Watcher(_NAME, connect))


def connect() -> None:
    """Teaches the imported Keras about strategies, if it runs on JAX; warns if it does not."""
    from keras import config

    backend: str = config.backend()
    if backend != "jax":
        warnings.warn(
            f"Keras runs on its {backend} backend, which jaxtribute's strategies do not reach: models made in their "
            "scopes are trained as without them. HINT: set the environment variable KERAS_BACKEND=jax before the "
            "first import of keras.",
            stacklevel=2,
        )
        return
    from jaxtribute._src.integrations.keras.patches import patch

    patch()


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
        """The library's own spec, with `connect` behind its execution; None for all other modules."""
        if name != self._name:
            return None
        # Removed before the search: the finders behind this one would otherwise be asked through it again.
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


BEFORE_STRATEGIES.register(_look)
