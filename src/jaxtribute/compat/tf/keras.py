"""`tf.keras`: Keras 3, on its JAX backend unless the environment says otherwise. Takes `jaxtribute[keras]`."""

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

from jaxtribute.errors import MissingLibraryError as _MissingLibraryError

try:
    import keras as _keras
except ModuleNotFoundError as _missing:
    raise _MissingLibraryError(f"tf.keras needs {_missing.name}. HINT: pip install 'jaxtribute[keras]'.") from _missing

from jaxtribute import context as _contexts

# Outside of scopes, too, Keras shall read this package's datasets.
_contexts.announce()


def __getattr__(name: str) -> Any:
    return getattr(_keras, name)
