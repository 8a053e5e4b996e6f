"""Components of a distributed value, each on its replica's device, as arguments of one function of `tf`."""

from __future__ import annotations

from typing import Any

import jax

from jaxtribute.extending import Tracer


def together(arguments: Any) -> Any:
    """A nest with its arrays on one device, the first's, if they lie on several; TensorFlow copies them, too.

    Args:
      arguments: a function's. Arrays that are traced, and those without a device of their own, stay as they are.
    """
    placed = [leaf for leaf in jax.tree.leaves(arguments) if _is_placed(leaf)]
    if len({next(iter(leaf.devices())) for leaf in placed}) < 2:
        return arguments
    (device,) = placed[0].devices()
    return jax.tree.map(lambda leaf: jax.device_put(leaf, device) if _is_placed(leaf) else leaf, arguments)


def _is_placed(leaf: Any) -> bool:
    """True for an array that lies on one device, for which it was meant."""
    concrete = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
    return concrete and leaf.committed and len(leaf.devices()) == 1
