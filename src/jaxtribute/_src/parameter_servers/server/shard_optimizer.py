"""An optimizer's work on one server: the update of its variables there, with the slots beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtribute._src.optimizer.slots import leaves_of, optax_rules


class ShardOptimizer:
    """An Optax transformation over the shards that one server holds.

    Args:
      transform: the transformation.
      params: keys of the shards that it updates.
      slots: keys of the leaves of its state, in their order.
      owners: for each leaf the place among `params` of the shard that it belongs to and is shaped as, or None.
    """

    def __init__(
        self,
        transform: optax.GradientTransformation,
        params: Sequence[int],
        slots: Sequence[int],
        owners: Sequence[int | None],
    ) -> None:
        self.transform: optax.GradientTransformation = transform
        self.params, self.slots, self.owners = list(params), list(slots), list(owners)
        self._tree: Any = None
        self._update = jax.jit(self._step)

    def initial(self, params: Sequence[Any]) -> list[Any]:
        """The leaves of the first state."""
        with optax_rules():
            state = jax.jit(self.transform.init)([jnp.asarray(param) for param in params])
        self._tree = jax.tree.structure(state)
        return leaves_of(state)

    def adopt(self, params: Sequence[Any]) -> None:
        """Takes the structure of a state whose leaves are there already."""
        with optax_rules():
            self._tree = jax.tree.structure(jax.eval_shape(self.transform.init, list(params)))

    def update(self, grads: Sequence[Any], leaves: Sequence[Any], params: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """New shards and new leaves of the state. Arrays of one argument may be some rows of those that are kept."""
        return self._update(list(grads), list(leaves), list(params))

    def _step(self, grads: list[Any], leaves: list[Any], params: list[Any]) -> tuple[list[Any], list[Any]]:
        with optax_rules():
            updates, state = self.transform.update(grads, self._tree.unflatten(leaves), params)
            return jax.tree.leaves(optax.apply_updates(params, updates)), leaves_of(state)


def padded(ids: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """`ids` and `rows` with more of them, up to a power of two, so that few programs are compiled."""
    # Each number of rows would be a program of its own. The rows that are added belong to row 0 and are not written
    # back.
    size = max(16, 1 << (len(ids) - 1).bit_length()) if len(ids) else 16
    more = size - len(ids)
    return (
        np.concatenate([ids, np.zeros(more, ids.dtype)]),
        np.concatenate([rows, np.zeros((more, *rows.shape[1:]), rows.dtype)]),
    )
