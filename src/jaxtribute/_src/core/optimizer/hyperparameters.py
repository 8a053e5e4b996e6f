"""An optimizer's state as users see it: hyperparameters that can be set, no loss of the whole batch in a replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxtribute._src.core.types import Leaf, Nest, Numeric
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentError


class Hyperparameters(dict[str, Any]):
    """The slots of hyperparameters by name; what is set is assigned to the slot."""

    def __setitem__(self, name: str, value: Numeric) -> None:
        slot = self.get(name)
        if slot is None:
            raise ArgumentError(f"there is no hyperparameter {name!r}. HINT: they are {sorted(self)}.")
        if value is not slot:
            slot.assign(value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Sets several."""
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __ior__(self, other: Any) -> Hyperparameters:
        self.update(other)
        return self

    def _refused(self, *_: object) -> Any:
        raise ArgumentError("the hyperparameters of an optimizer cannot be deleted. HINT: set them.")

    __delitem__ = pop = popitem = clear = _refused


def settable(state: Nest) -> Any:
    """A state whose hyperparameters can be set."""
    return _replaced(state, Hyperparameters)


def plain(state: Nest) -> Any:
    """A state in Optax's own types."""
    return _replaced(state, dict)


def _replaced(state: Nest, kind: Callable[[Any], Any]) -> Any:
    def replaced(node: Leaf) -> Any:
        if not _is_injected(node):
            return node
        return node._replace(hyperparams=kind(node.hyperparams), inner_state=_replaced(node.inner_state, kind))

    return jax.tree.map(replaced, state, is_leaf=lambda node: _is_injected(node) or isinstance(node, Variable))


def of_replica(state: Nest) -> Any:
    """A state as one of several replicas uses it: of the loss that a line search has kept it knows nothing.

    That is the whole batch's, as the gradient beside it. So `optax.value_and_grad_from_state` computes both again, and
    a replica gives the optimizer its own, to be reduced.
    """

    def seen(node: Leaf) -> Any:
        if not _is_search(node):
            return node
        return node._replace(value=jnp.full(node.value.shape, jnp.nan, node.value.dtype))

    return jax.tree.map(seen, state, is_leaf=lambda node: _is_search(node) or isinstance(node, Variable))


def _is_search(node: Leaf) -> bool:
    is_named = isinstance(node, tuple) and {"value", "grad"} <= set(getattr(node, "_fields", ()))
    return is_named and isinstance(getattr(node, "value", None), Variable)


def _is_injected(node: Leaf) -> bool:
    return isinstance(node, tuple) and {"hyperparams", "inner_state"} <= set(getattr(node, "_fields", ()))


def _with_keys(hyperparameters: Hyperparameters) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    names = tuple(sorted(hyperparameters))
    return [(jax.tree_util.DictKey(name), hyperparameters[name]) for name in names], names


# What is made of them, by `jax.tree.map` and the like, is a plain dictionary again.
_remade: Any = lambda names, values: dict(zip(names, values, strict=True))  # noqa: E731
jax.tree_util.register_pytree_with_keys(Hyperparameters, _with_keys, _remade)
