"""An optimizer's state as variables beside the variables that it updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import optax

from jaxtribute.values.enums import VariableSynchronization
from jaxtribute.values.policies import MirroredPolicy, SlicedPolicy
from jaxtribute.values.variable import Variable


@dataclass(frozen=True)
class Slots:
    """The state of an Optax transformation.

    Attributes:
      variables: the state's arrays, in the order of its leaves.
      tree: the state's structure.
      owners: for each leaf the index of the parameter that it belongs to and is shaped as, or None.
    """

    variables: tuple[Variable, ...]
    tree: Any
    owners: tuple[int | None, ...]


@contextmanager
def optax_rules() -> Iterator[None]:
    """JAX's usual promotion: Optax mixes dtypes and ranks, however strict the user is with code of their own."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def make_slots(transform: optax.GradientTransformation, variables: Sequence[Variable], sliced: frozenset[int]) -> Slots:
    """Makes the slots of `variables`, each stored as its variable is; those of `sliced` ones in slices.

    Args:
      transform: the Optax transformation.
      variables: the variables that it will update, of one strategy.
      sliced: indices of variables whose slots each replica holds a slice of.
    """
    params = [variable.stored for variable in variables]
    with optax_rules():
        state = jax.jit(transform.init)(params)
    leaves, tree = jax.tree.flatten(state)
    owners = tuple(owner_of_leaves(transform, state, variables))
    strategy = variables[0].distribute_strategy
    plain = strategy.extended.variable_policy(VariableSynchronization.ON_WRITE)[0]
    slots: list[Variable] = []
    for place, (leaf, owner) in enumerate(zip(leaves, owners, strict=True)):
        policy = plain
        name = f"slot_{place}"
        if owner is not None:
            name = f"{variables[owner].name.removesuffix(':0')}/{name}"
            if owner in sliced and isinstance(plain, MirroredPolicy):
                policy = SlicedPolicy(plain.mesh)
        slots.append(Variable.with_policy(leaf, policy, name=name, strategy=strategy))
    return Slots(tuple(slots), tree, owners)


def owner_of_leaves(
    transform: optax.GradientTransformation, state: Any, variables: Sequence[Variable]
) -> list[int | None]:
    """For each leaf of `state` the parameter that it is shaped as and belongs to, as Optax tells, or None."""
    indices = list(range(len(variables)))
    count = jax.tree.structure(state).num_leaves
    try:
        marked = optax.tree_utils.tree_map_params(
            transform, lambda leaf, index: _Owner(index), state, indices, transform_non_params=lambda leaf: _Owner(None)
        )
    except Exception:  # noqa: BLE001 (Optax cannot tell for every third-party state: then nothing is sliced)
        return [None] * count
    marks = jax.tree.leaves(marked, is_leaf=lambda leaf: isinstance(leaf, _Owner))
    if len(marks) != count:
        return [None] * count
    owners: list[int | None] = []
    for leaf, mark in zip(jax.tree.leaves(state), marks, strict=True):
        index = mark.index if isinstance(mark, _Owner) else None
        owners.append(index if index is not None and leaf.shape == variables[index].shape else None)
    return owners


@dataclass(frozen=True)
class _Owner:
    index: int | None
