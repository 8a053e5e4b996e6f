"""`tf.keras`: Keras 3, on its JAX backend unless the environment says otherwise. Takes `jaxtribute[keras]`."""

import os
from types import ModuleType as _ModuleType
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

from jaxtribute.errors import MissingLibraryError as _MissingLibraryError

try:
    import keras as _keras
    import keras._tf_keras.keras as _with_older_names
except ModuleNotFoundError as _missing:
    raise _MissingLibraryError(f"tf.keras needs {_missing.name}. HINT: pip install 'jaxtribute[keras]'.") from _missing

from jaxtribute._src.core import context as _contexts

# Outside of scopes, too, Keras shall read this package's datasets.
_contexts.announce()


_OWN = {"layers": ("IntegerLookup", "StringLookup", "TextVectorization"), "callbacks": ("TensorBoard",)}
"""By module, what Keras has for TensorFlow alone."""


def __getattr__(name: str) -> Any:
    # Some modules are in one of the two alone; the second has names that Keras 3 keeps for TensorFlow's programs.
    found = getattr(_with_older_names, name) if hasattr(_with_older_names, name) else getattr(_keras, name)
    if name not in _OWN or _keras.config.backend() != "jax":
        return found
    globals()[name] = _Part(found, _OWN[name])
    return globals()[name]


class _Part(_ModuleType):
    """A module of Keras with names of this library in place of some.

    Args:
      module: Keras's own.
      own: the names.
    """

    def __init__(self, module: _ModuleType, own: tuple[str, ...]) -> None:
        super().__init__(module.__name__, module.__doc__)
        from jaxtribute.integrations import keras as ours

        self._module = module
        vars(self).update({name: getattr(ours, name) for name in own})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._module), *vars(self)})
