"""`tf.keras`: Keras 3, on its JAX backend unless the environment says otherwise. Takes `jaxtribute[keras]`."""

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

from jaxtribute.errors import MissingLibraryError as _MissingLibraryError

try:
    import keras as _keras
    import keras._tf_keras.keras as _with_older_names
except ModuleNotFoundError as _missing:
    raise _MissingLibraryError(f"tf.keras needs {_missing.name}. HINT: pip install 'jaxtribute[keras]'.") from _missing

from jaxtribute._src import context as _contexts

# Outside of scopes, too, Keras shall read this package's datasets.
_contexts.announce()


def __getattr__(name: str) -> Any:
    # Some modules are in one of the two alone; the second has names that Keras 3 keeps for TensorFlow's programs.
    return getattr(_with_older_names, name) if hasattr(_with_older_names, name) else getattr(_keras, name)
