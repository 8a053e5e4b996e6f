"""Nests of arrays, taken apart by dtype: modules of Equinox, parameters of Flax Linen and Haiku, one's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import jax

from jaxtribute._src.addons.models.parts import Kind, Part, is_array, is_inexact, is_key
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError
from jaxtribute.extending import Nests
from jaxtribute.typing import Nest


def accepts(model: Nest) -> bool:
    """True: JAX takes everything for a nest, if only of one leaf."""
    del model
    return True


def take_apart(model: Nest, wrt: Any) -> tuple[list[Part], Outline]:
    """The arrays; those of floating numbers are parameters, as `equinox.is_inexact_array` has it.

    Args:
      model: the nest.
      wrt: a nest like its first levels, of True and False or functions of a leaf, as `equinox.partition` takes it.
    """
    # Equinox keeps numbers as settings, and so does JAX as static leaves: of one's own nest it is not known which.
    _check_numbers(model)
    _check_states(model)
    parts, outline = _apart(model, lambda value: Kind.PARAMETER if is_inexact(value) else Kind.FIXED)
    if wrt is None:
        return parts, outline
    chosen = _chosen(wrt, model)
    some: list[Part] = []
    for part, is_trained in zip(parts, outline.of_arrays(chosen), strict=True):
        frozen = part.kind is Kind.PARAMETER and not is_trained
        some.append(replace(part, kind=Kind.FROZEN) if frozen else part)
    return some, outline.training(some)


def _chosen(wrt: Any, model: Nest) -> list[bool]:
    """Of each leaf of a model whether it is trained.

    Raises:
      ArgumentTypeError: `wrt` is not structured as the model, or holds something else.
    """

    def below(choice: Any, part: Nest) -> list[bool]:
        return [bool(choice(leaf)) if callable(choice) else choice for leaf in jax.tree.leaves(part)]

    try:
        found = jax.tree.leaves(jax.tree.map(below, wrt, model))
    except ValueError as error:
        told = " ".join(str(error).split())
        raise ArgumentTypeError(
            f"wrt is not structured as the model: {told}. HINT: pass a function of a leaf, or a nest like the model's "
            "first levels, of True and False."
        ) from None
    if not all(isinstance(one, bool) for one in found):
        raise ArgumentTypeError(f"wrt holds {found}. HINT: True for what is trained, False for all else.")
    return found


def take_state_apart(state: Nest) -> tuple[list[Part], Outline]:
    """The arrays of what steps change: running statistics, counts.

    Raises:
      ArgumentTypeError: a leaf is no array, or a random key.
    """
    parts, outline = _apart(state, lambda value: Kind.STATISTIC if is_inexact(value) else Kind.ALIKE)
    for path, leaf in jax.tree.leaves_with_path(state):
        if not is_array(leaf) or is_key(leaf):
            raise ArgumentTypeError(
                f"state{jax.tree_util.keystr(path)} is {leaf!r} of type {type(leaf).__name__}. HINT: a state holds "
                "arrays of numbers; give random keys as rng=, and take new ones by jd.Model.key."
            )
    return parts, outline


class Outline:
    """The structure of a nest, and its leaves that are no arrays.

    Args:
      structure: the structure of the whole nest.
      leaves: its leaves, None in place of each array.
      places: which of the leaves are arrays.
      parts: the arrays.
      keys: what `_keys` gives of the nest.
    """

    def __init__(
        self,
        structure: jax.tree_util.PyTreeDef,
        leaves: Sequence[Any],
        places: Sequence[int],
        parts: Sequence[Part],
        keys: Any,
    ) -> None:
        self._structure, self._leaves, self._places, self._keys = structure, leaves, places, keys
        self._trained = [part.kind is Kind.PARAMETER for part in parts]

    def of_arrays(self, leaves: Sequence[Any]) -> list[Any]:
        """Those of something for each leaf that are for arrays."""
        return [leaves[place] for place in self._places]

    def training(self, parts: Sequence[Part]) -> Outline:
        """The same nest with other parts as parameters."""
        return Outline(self._structure, self._leaves, self._places, parts, self._keys)

    def wider_than(self, dtype: Any, model: Nest) -> list[str]:
        """None: a nest has no types of its own."""
        del dtype, model
        return []

    def build(self, values: Sequence[Any]) -> Any:
        """A new nest."""
        leaves = list(self._leaves)
        for place, value in zip(self._places, values, strict=True):
            leaves[place] = value
        return self._structure.unflatten(leaves)

    def values(self, model: Nest) -> list[Any]:
        """The arrays of a nest of the same structure.

        Raises:
          ShapeError: its structure is another one.
        """
        leaves, structure = jax.tree.flatten(model)
        if structure != self._structure:
            raise ShapeError(
                f"the nest has the structure {structure} instead of {self._structure}. HINT: a jd.Model keeps the "
                "structure that it was made with; return all of a state, its unchanged parts too."
            )
        return [leaves[place] for place in self._places]

    def nest(self, leaves: Sequence[Any]) -> Any:
        """A nest of the whole structure with None for everything that is no parameter, as `equinox.partition` gives."""
        rest = iter(leaves)
        return _in_order(self.build_sparse([next(rest) if trained else None for trained in self._trained]), self._keys)

    def build_sparse(self, values: Sequence[Any]) -> Any:
        """A new nest with None in place of all leaves that are no arrays."""
        leaves: list[Any] = [None] * len(self._leaves)
        for place, value in zip(self._places, values, strict=True):
            leaves[place] = value
        return self._structure.unflatten(leaves)


def _apart(nest: Nest, kind: Callable[[Any], Kind]) -> tuple[list[Part], Outline]:
    found, structure = jax.tree.flatten_with_path(nest)
    leaves: list[Any] = []
    places: list[int] = []
    parts: list[Part] = []
    for place, (path, leaf) in enumerate(found):
        if not is_array(leaf):
            leaves.append(leaf)
            continue
        leaves.append(None)  # an outline holds no arrays: their present values are in variables
        places.append(place)
        parts.append(Part(tuple(map(Nests.step_of, path)), leaf, kind(leaf)))
    return parts, Outline(structure, leaves, places, parts, _keys(nest))


def _keys(nest: Any) -> Any:
    """The order in which the user's dictionaries have their items, which JAX sorts; None where there is none."""
    if type(nest) is dict:
        return {key: _keys(value) for key, value in cast("dict[Any, Any]", nest).items()}
    return list(map(_keys, cast("Sequence[Any]", nest))) if type(nest) in (list, tuple) else None


def _in_order(nest: Any, keys: Any) -> Any:
    """The nest with its dictionaries in the user's order: a list of gradients may be meant in it."""
    if isinstance(keys, dict):
        return {key: _in_order(nest[key], inner) for key, inner in cast("dict[Any, Any]", keys).items()}
    if isinstance(keys, list):
        return type(nest)(map(_in_order, nest, cast("list[Any]", keys)))
    return nest


def _check_numbers(model: Nest) -> None:
    """Numbers in a nest of one's own may be meant to be trained; those in a module of Equinox are settings."""
    # Without Equinox an empty tuple, of which nothing is an instance.
    module: Any = getattr(sys.modules.get("equinox"), "Module", ())
    for path, leaf in jax.tree.leaves_with_path(model, is_leaf=lambda value: isinstance(value, module)):
        if isinstance(leaf, (float, complex)) and not is_array(leaf):
            raise ArgumentTypeError(
                f"model{jax.tree_util.keystr(path)} is the number {leaf!r}, which could not be trained. HINT: make it "
                "an array, jnp.asarray(...), or leave it out of the model."
            )


def _check_states(model: Nest) -> None:
    index: Any = getattr(getattr(sys.modules.get("equinox"), "nn", None), "StateIndex", ())
    for leaf in jax.tree.leaves(model, is_leaf=lambda value: isinstance(value, index)):
        if isinstance(leaf, index) and jax.tree.leaves(leaf.init):
            raise ArgumentError(
                f"the {type(model).__name__} holds the first state of its layers, which would be trained. HINT: make "
                "it by `module, state = equinox.nn.make_with_state(Class)(...)`, and pass jd.Model(module, ..., "
                "state=state)."
            )
