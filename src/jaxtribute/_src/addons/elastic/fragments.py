"""Fragments of a model: parts of about the same size, of which a meeting of the islands updates one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax


def split(sizes: Sequence[int], count: int) -> list[int]:
    """The fragment of each array: neighbours stay together.

    Args:
      sizes: of the arrays, in elements.
      count: of fragments; more than arrays leave some empty.
    """
    total, before, found = max(sum(sizes), 1), 0, list[int]()
    for size in sizes:
        found.append(min(int(count * (before + size / 2) / total), count - 1))
        before += size
    return found


def in_turn(
    transform: optax.GradientTransformation, where: Sequence[int], count: int
) -> optax.GradientTransformationExtraArgs:
    """A transformation that updates the fragments which `turn` names, and leaves the others, and their slots, alone.

    Args:
      transform: of a fragment's parameters, in the nest that all are in.
      where: the fragment of each parameter, in the order of the nest.
      count: of fragments.
    """
    inner = optax.with_extra_args_support(transform)

    def only(nest: Any, part: int) -> Any:
        leaves, tree = jax.tree.flatten(nest)
        return tree.unflatten(
            [leaf if own == part else optax.MaskedNode() for leaf, own in zip(leaves, where, strict=True)]
        )

    def init(params: Any) -> tuple[Any, ...]:
        return tuple(inner.init(only(params, part)) for part in range(count))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        turn = extra["turn"]
        leaves, tree = jax.tree.flatten(updates)
        found, states = [jnp.zeros_like(leaf) for leaf in leaves], list[Any]()
        for part, before in enumerate(state):
            own = None if params is None else only(params, part)
            changes, after = inner.update(only(updates, part), before, own)

            def chosen(new: Any, old: Any, part: int = part) -> Any:
                return jnp.where(turn[part], new, old)

            places = [place for place, of in enumerate(where) if of == part]
            for place, change in zip(places, jax.tree.leaves(changes), strict=True):
                found[place] = chosen(change, found[place])
            states.append(jax.tree.map(chosen, after, before))
        return tree.unflatten(found), tuple(states)

    return optax.GradientTransformationExtraArgs(init, update)
