"""Variables whose gradient is their new value, as the scales of training in float8 are: nothing there adds up.

Keras takes the largest of the values where gradients are accumulated over several calls, and so it is taken here of
those of several replicas: they are largest values of the rows themselves, or the same for any rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxtribute import ReplicaContext


def set_apart(grads: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
    """Tells gradients, None in place of the others, from new values by their places.

    Args:
      grads: a gradient for each variable.
      variables: the variables, of Keras or of this library.
    """
    values: dict[int, Any] = {}
    for place, (grad, variable) in enumerate(zip(grads, variables, strict=False)):
        if grad is not None and getattr(variable, "overwrite_with_gradient", False):
            values[place] = grad
    return [None if place in values else grad for place, grad in enumerate(grads)], values


def put_back(grads: Sequence[Any], values: Mapping[int, Any]) -> list[Any]:
    """Gradients together with new values."""
    return [values.get(place, grad) for place, grad in enumerate(grads)]


def largest(context: ReplicaContext, values: Mapping[int, Any]) -> dict[int, Any]:
    """The largest of all replicas' new values."""
    if not values:
        return {}
    # Not what the context makes of a user's own.
    gathered = ReplicaContext.all_gather(context, {place: jnp.asarray(one)[None] for place, one in values.items()}, 0)
    return jax.tree.map(lambda all_: jnp.max(all_, axis=0), gathered)
