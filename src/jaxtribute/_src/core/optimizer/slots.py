"""An optimizer's state as variables beside the variables that it updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jaxtribute._src.core.optimizer.parameters import Parameters
from jaxtribute._src.core.types import Leaf
from jaxtribute._src.core.values.enums import VariableSynchronization
from jaxtribute._src.core.values.placing import own
from jaxtribute._src.core.values.policies.base import Policy
from jaxtribute._src.core.values.policies.sharded import ShardedPolicy
from jaxtribute._src.core.values.slices import Cut
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ShapeError

_LARGE_BYTES = 1 << 20
_MANY_REPLICAS = 4
"""With two replicas the update that is saved costs less than scattering and gathering (12 % of a large MLP's step)."""


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

    @staticmethod
    def arrays_of(state: Any) -> list[Any]:
        """A state's arrays; of random keys their data."""
        return list(map(_data, jax.tree.leaves(state)))

    @staticmethod
    def shared_out(policy: Policy, shape: tuple[int, ...], dtype: Any, shard_update: bool | str | None) -> Cut | None:
        """The cut in which replicas update a variable that each of them has whole; None if each updates all of it."""
        mesh, size = policy.mesh, math.prod(shape)
        # A single replica has nobody to share the update with.
        if not shard_update or mesh is None or mesh.size == 1:
            return None
        whole = policy.mirrored and policy.cut is None and not policy.layout
        # With fewer elements than replicas some would have nothing but padding.
        if not whole or size < mesh.size:
            return None
        if shard_update == "auto":
            # Gloo's messages cost more than the update that is saved.
            between_cpus = mesh.peers is not None and mesh.devices[0].platform == "cpu"
            small = size * np.dtype(dtype).itemsize < _LARGE_BYTES
            # The devices of a replica would hand each other a flat variable's parts, to cut it again.
            if small or mesh.size < _MANY_REPLICAS or between_cpus or mesh.group:
                return None
        return Cut.of(shape, mesh)

    @staticmethod
    def policy(plain: Policy, shape: tuple[int, ...], dtype: Any, owner: Policy | None, cut: Cut | None) -> Policy:
        """The policy of a slot: cut as its variable is updated, and laid out as that one's policy `owner` says."""
        # What belongs to no variable, such as a count of steps, is stored as a new variable would be.
        if owner is None:
            return plain.fitted(shape, dtype)
        if owner.by_rows:
            return owner
        if cut is not None and owner.mesh is not None:
            return ShardedPolicy(owner.mesh, layout=owner.layout, cut=cut)
        return plain.laid_out(owner.layout).fitted(shape, dtype)

    @staticmethod
    def names(paths: Sequence[Any], owners: Sequence[str | None]) -> list[str]:
        """Optax's names of slots by their paths, after the names of the variables that they belong to."""
        return slot_names(paths, owners)

    def state(self, values: Sequence[Any]) -> Any:
        """The state as Optax has it, of the variables' values."""
        leaves: list[Any] = []
        for value, kind in zip(values, self.keys, strict=True):
            leaves.append(value if kind is None else jax.random.wrap_key_data(value, impl=kind))
        return self.tree.unflatten(leaves)

    def values_in(self, state: Any) -> list[Any]:
        """The leaves of a state of this structure; of random keys their data.

        Raises:
          ShapeError: its structure is another one.
        """
        try:
            leaves = self.tree.flatten_up_to(state)
        except ValueError as error:
            told = " ".join(str(error).split())
            raise ShapeError(
                f"the state is not structured as the transformation's: {told}. HINT: change values in a nest that "
                "optimizer.state gave, e.g. by optax.tree.set."
            ) from None
        return [leaf if isinstance(leaf, Variable) else _data(leaf) for leaf in leaves]


def _data(leaf: Leaf) -> Any:
    """A leaf as a variable can hold it: a random key has no dtype of NumPy's, its data have."""
    return leaf if _key_kind(leaf) is None else jax.random.key_data(leaf)


def _key_kind(leaf: Leaf) -> Any:
    is_key = jax.numpy.issubdtype(jax.numpy.result_type(leaf), jax.dtypes.prng_key)
    return jax.random.key_impl(leaf) if is_key else None


@contextmanager
def optax_rules() -> Generator[None]:
    """JAX's usual promotion: Optax mixes dtypes and ranks, however strict the user is with code of their own."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def make_slots(
    transform: optax.GradientTransformation,
    variables: Sequence[Variable],
    parameters: Parameters,
    sliced: Mapping[int, Cut],
    shard_update: bool | str,
) -> Slots:
    """Makes the slots of `variables`, each stored as its variable is; those of `sliced` ones in slices.

    Args:
      transform: the Optax transformation.
      variables: the variables that it will update, of one strategy.
      parameters: their nest.
      sliced: the variables of whose slots each replica holds a piece, by index, with the way they are cut.
      shard_update: the optimizer's setting, which the slots remember.
    """
    kinds: list[Any] = []

    def init(stored: Sequence[Any]) -> Any:
        params = [variable.policy.value(array) for variable, array in zip(variables, stored, strict=True)]
        with optax_rules():
            state = transform.init(parameters.nest(params))
        # Noted while it is traced: what comes out holds the data of keys, which look like other numbers.
        kinds[:] = map(_key_kind, jax.tree.leaves(state))
        return state

    stored = [variable.stored for variable in variables]
    # Traced and not run: how each slot is stored must be known before any takes memory.
    shapes = jax.eval_shape(lambda stored: jax.tree.map(_data, init(stored)), stored)
    with optax_rules():
        belongings = parameters.belongings(shapes, transform.init)
    owners = [leaf.owner for leaf in belongings]
    for place, kind in enumerate(kinds):
        # The data of keys may have a variable's shape by chance.
        if kind is not None:
            owners[place] = None
    strategy = variables[0].distribute_strategy
    plain = strategy.extended.variable_policy(VariableSynchronization.ON_WRITE)[0]
    leaves, tree = jax.tree.flatten(shapes)
    policies: list[Policy] = []
    for leaf, owner in zip(leaves, owners, strict=True):
        of_owner, cut = (None, None) if owner is None else (variables[owner].policy, sliced.get(owner))
        policies.append(Slots.policy(plain, leaf.shape, leaf.dtype, of_owner, cut))
    arrays = _stored_state(init, stored, policies) if policies else []
    names = slot_names(
        [leaf.path for leaf in belongings],
        [None if owner is None else variables[owner].name for owner in owners],
    )
    slots: list[Variable] = []
    for array, policy, name, leaf, owner in zip(arrays, policies, names, leaves, owners, strict=True):
        # The array of a slice does not tell the shape of the value, which is padded in it.
        shape = leaf.shape if policy.split else None
        slots.append(Variable.with_policy(array, policy, name=name, strategy=strategy, shape=shape))
        slots[-1].follows = None if owner is None else (variables[owner], shard_update)
    return Slots(tuple(slots), tree, tuple(owners), tuple(kinds))


def _stored_state(init: Callable[[Sequence[Any]], Any], stored: Sequence[Any], policies: Sequence[Policy]) -> list[Any]:
    """The first state's arrays: those that are stored in slices as such, which no device ever holds whole."""

    def laid_out(stored: Sequence[Any]) -> list[Any]:
        # As steps will return them, without Python's weak types: a step would be compiled again for each.
        leaves = [
            lax.convert_element_type(leaf, leaf.dtype) for leaf in map(jnp.asarray, Slots.arrays_of(init(stored)))
        ]
        return [policy.pieces(leaf) for policy, leaf in zip(policies, leaves, strict=True)]

    places = [policy.where for policy in policies]
    in_parts = [place for place, policy in enumerate(policies) if policy.split or policy.layout]
    if not in_parts:
        return jax.jit(laid_out)(stored)
    arrays = jax.jit(laid_out, out_shardings=places)(stored)
    for place in in_parts:
        # A state that is the parameters themselves would share their memory.
        arrays[place] = own(arrays[place], places[place])
    return arrays


def slot_names(paths: Sequence[Any], owners: Sequence[str | None]) -> list[str]:
    """Optax's name of each slot (`mu`, `trace`, `count`), after the name of the variable that the slot belongs to."""
    seen: dict[str, int] = {}
    names: list[str] = []
    for path, owner in zip(paths, owners, strict=True):
        fields = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)]
        name = fields[-1] if fields else "slot"
        if owner is not None:
            name = f"{owner.removesuffix(':0')}/{name}"
        # Several transformations in a chain may have slots of one name: the later ones get a number.
        count = seen[name] = seen.get(name, -1) + 1
        names.append(f"{name}_{count}" if count else name)
    return names
