"""Finding Keras: the first scope or traced function teaches it about strategies, or its import after that."""

from __future__ import annotations

from jaxtribute.extending import Callers, Library, points


def connect() -> None:
    """Teaches the imported Keras about strategies, if it runs on JAX; warns if it does not."""
    from keras import config

    backend: str = config.backend()
    if backend != "jax":
        Callers.warn(
            f"Keras runs on its {backend} backend, which jaxtribute's strategies do not reach: models made in their "
            "scopes are trained as without them. HINT: set the environment variable KERAS_BACKEND=jax before the "
            "first import of keras."
        )
        return
    from jaxtribute._src.addons.keras.patches import patch

    patch()


points.LIBRARIES.register(Library("keras", "__version__", connect))
