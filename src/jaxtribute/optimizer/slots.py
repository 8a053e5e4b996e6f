"""An optimizer's state as variables beside the variables that it updates."""

from __future__ import annotations

from collections.abc import Generator, Sequence
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
      variables: the state's arrays, in the order of its leaves; of random keys their data.
      tree: the state's structure.
      owners: for each leaf the index of the parameter that it belongs to and is shaped as, or None.
      keys: for each leaf the kind of random key that it is, or None.
    """

    variables: tuple[Variable, ...]
    tree: Any
    owners: tuple[int | None, ...]
    keys: tuple[Any, ...]

    def state(self, values: Sequence[Any]) -> Any:
        """The state as Optax has it, of the variables' values."""
        pairs = zip(values, self.keys, strict=True)
        return self.tree.unflatten([x if kind is None else jax.random.wrap_key_data(x, impl=kind) for x, kind in pairs])


def leaves_of(state: Any) -> list[Any]:
    """The state's arrays; of random keys their data."""
    return [jax.random.key_data(leaf) if _key_kind(leaf) is not None else leaf for leaf in jax.tree.leaves(state)]


def _key_kind(leaf: Any) -> Any:
    is_key = jax.numpy.issubdtype(jax.numpy.result_type(leaf), jax.dtypes.prng_key)
    return jax.random.key_impl(leaf) if is_key else None


@contextmanager
def optax_rules() -> Generator[None]:
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
    leaves, tree = leaves_of(state), jax.tree.structure(state)
    owners = tuple(owner_of_leaves(state, variables))
    strategy = variables[0].distribute_strategy
    plain = strategy.extended.variable_policy(VariableSynchronization.ON_WRITE)[0]
    slots: list[Variable] = []
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    names = _names(paths, [None if owner is None else variables[owner].name for owner in owners])
    for leaf, owner, name in zip(leaves, owners, names, strict=True):
        policy = SlicedPolicy(plain.mesh) if owner in sliced and isinstance(plain, MirroredPolicy) else plain
        slots.append(Variable.with_policy(leaf, policy, name=name, strategy=strategy))
    return Slots(tuple(slots), tree, owners, tuple(_key_kind(leaf) for leaf in jax.tree.leaves(state)))


def _names(paths: Sequence[Any], owners: Sequence[str | None]) -> list[str]:
    """What Optax calls each slot (`mu`, `trace`, `count`), behind the name of the variable that it belongs to."""
    seen: dict[str, int] = {}
    names: list[str] = []
    for path, owner in zip(paths, owners, strict=True):
        fields = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)]
        name = fields[-1] if fields else "slot"
        if owner is not None:
            name = f"{owner.removesuffix(':0')}/{name}"
        count = seen[name] = seen.get(name, -1) + 1
        names.append(f"{name}_{count}" if count else name)
    return names


def owner_of_leaves(state: Any, variables: Sequence[Variable]) -> list[int | None]:
    """For each leaf of `state` the parameter that it is shaped as and belongs to, or None.

    Optax keeps what belongs to a parameter in a nest like that of the parameters, here a list. A leaf that only
    looks so is stored in slices, too, and gathered where the update needs it whole.
    """
    owners: list[int | None] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        index = getattr(path[-1], "idx", None) if path else None
        fits = index is not None and index < len(variables) and jax.numpy.shape(leaf) == variables[index].shape
        owners.append(index if fits and _key_kind(leaf) is None else None)
    return owners
