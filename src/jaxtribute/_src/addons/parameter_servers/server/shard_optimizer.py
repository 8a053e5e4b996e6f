"""An optimizer's work on one server: the update of its variables there, with the slots beside them."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtribute._src import jax_settings
from jaxtribute.extending import Slots, optax_rules
from jaxtribute.typing import Array, Nest


class ShardOptimizer:
    """An Optax transformation over the shards that one server holds.

    It sees them in the user's nest, with None for what other servers hold. Several shards of a variable are one array
    of their rows.

    Args:
      transform: the transformation.
      nest: the nest of all parameters, with their numbers as leaves.
      settings: the settings of JAX that it computes under, as far as they differ from those of this process.
      params: keys of the shards that it updates.
      places: for each the number of its parameter.
      slots: keys of the leaves of its state, in their order; of one that belongs to several shards one for each.
      leaves: for each the number of its leaf; those of one leaf stand together.
      owners: for each the place among `params` of the shard that it belongs to and is shaped as, or None.
    """

    def __init__(
        self,
        transform: optax.GradientTransformation,
        nest: Nest,
        settings: jax_settings.Settings = MappingProxyType({}),
        *,
        params: Sequence[int],
        places: Sequence[int],
        slots: Sequence[int],
        leaves: Sequence[int],
        owners: Sequence[int | None],
    ) -> None:
        self.transform: optax.GradientTransformation = transform
        self._nest, self._settings = nest, settings
        self.params, self.slots, self.owners = list(params), list(slots), list(owners)
        self.places, self.leaves = list(places), list(leaves)
        self._tree: Any = None
        self._update = jax.jit(self._step)

    def initial(self, params: Sequence[Any]) -> list[Any]:
        """The leaves of the first state."""
        with jax_settings.within(self._settings), optax_rules():
            state = jax.jit(self.transform.init)(self._whole([jnp.asarray(param) for param in params]))
        self._tree = jax.tree.structure(state)
        return self._parted_state(state, params)

    def adopt(self, params: Sequence[Any]) -> None:
        """Takes the structure of a state whose leaves are there already."""

        def init(params: Sequence[Any]) -> Any:
            return self.transform.init(self._whole(params))

        with jax_settings.within(self._settings), optax_rules():
            self._tree = jax.tree.structure(jax.eval_shape(init, list(params)))

    def update(self, grads: Sequence[Any], leaves: Sequence[Any], params: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """New shards and new leaves of the state. Arrays of one argument may be some rows of those that are kept."""
        with jax_settings.within(self._settings):
            return self._update(list(grads), list(leaves), list(params))

    def _step(self, grads: list[Any], leaves: list[Any], params: list[Any]) -> tuple[list[Any], list[Any]]:
        nest, state = self._whole(params), self._tree.unflatten(_joined(leaves, self.leaves))
        with optax_rules():
            updates, state = self.transform.update(self._whole(grads), state, nest)
            fresh = jax.tree.leaves(optax.apply_updates(nest, updates))
        return _parted(fresh, self.places, list(map(_rows, params))), self._parted_state(state, params)

    def _whole(self, shards: Sequence[Any]) -> Any:
        """The nest of what is given for each shard."""
        here = dict(zip(dict.fromkeys(self.places), _joined(shards, self.places), strict=True))
        return jax.tree.map(here.get, self._nest)

    def _parted_state(self, state: Nest, params: Sequence[Any]) -> list[Any]:
        rows = [None if owner is None else _rows(params[owner]) for owner in self.owners]
        return _parted(Slots.arrays_of(state), self.leaves, rows)


def _rows(array: Array) -> int | None:
    return array.shape[0] if array.shape else None


def _joined(parts: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    """The arrays of which `parts` are rows: those of one number stand together, and are one array."""
    arrays: dict[int, list[Any]] = {}
    for number, part in zip(numbers, parts, strict=True):
        arrays.setdefault(number, []).append(part)
    return [jnp.concatenate(several) if len(several) > 1 else several[0] for several in arrays.values()]


def _parted(arrays: Sequence[Any], numbers: Sequence[int], rows: Sequence[int | None]) -> list[Any]:
    """The inverse of `_joined`, with the number of rows of each part."""
    found: list[Any] = []
    for number, array in zip(dict.fromkeys(numbers), arrays, strict=True):
        counts = [count for count, of in zip(rows, numbers, strict=True) if of == number]
        found += jnp.split(array, np.cumsum(np.asarray(counts[:-1]))) if len(counts) > 1 else [array]
    return found


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
