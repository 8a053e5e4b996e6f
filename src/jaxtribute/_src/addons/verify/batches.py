"""Tells which arguments of a step are batches, and makes whole ones of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Mirrored, PerReplica
from jaxtribute._src.addons.verify.machine import CannotVerify
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute.extending import Nests


def whole(leaf: Any) -> Any:
    """An argument as one array of all rows, or as it is."""
    if isinstance(leaf, PerReplica):
        parts = leaf.values
        if len(parts) == 1 and np.ndim(parts[0]):
            parts = (leaf.data,)  # an island's batch is that of all islands, of which it takes its rows
        if all(map(Nests.is_array, parts)) and np.ndim(parts[0]):
            return np.concatenate([np.asarray(part) for part in parts])
        if all(np.array_equal(np.asarray(part), np.asarray(parts[0])) for part in parts):
            return parts[0]
        raise CannotVerify("an argument of the step is a number of each replica")
    if isinstance(leaf, Mirrored):
        return leaf.data if is_key(leaf.data) else jnp.asarray(np.asarray(leaf.data))
    if isinstance(leaf, jax.Array) and not is_key(leaf):
        return jnp.asarray(np.asarray(leaf))
    return leaf


def is_data(leaf: Any) -> bool:
    """True for an array that may have rows; a key has none, nor the two numbers of an old one."""
    if not Nests.is_array(leaf) or is_key(leaf) or not np.ndim(leaf):
        return False
    return (leaf.dtype, leaf.shape) != (np.uint32, (2,))


def drawn_rows(drawn: Iterable[Any]) -> dict[int, int]:
    """By the ids of arrays that were drawn of datasets their numbers of rows."""
    return {id(leaf): len(leaf) for leaf in drawn if is_data(leaf)}


def chosen_rows(batch: int, wanted: int) -> Any:
    """Numbers of rows of a batch, for one of `wanted` rows.

    Rows that are missing are taken again in another mix: replicas with equal rows have equal means of their own.
    """
    again = np.random.default_rng(7).integers(max(batch, 1), size=max(wanted - batch, 0))
    return np.concatenate([np.arange(min(batch, wanted)), again])


def batches_of(
    leaves: Sequence[Any], whole: Sequence[Any], drawn: Mapping[int, int], strategy: Any
) -> tuple[dict[int, int], int]:
    """By their places the arguments that are batches, with how many rows they have for each example; and its rows."""
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, PerReplica) and np.ndim(whole[place])]
    if not places and (strategy.num_replicas_in_sync == 1 or drawn):
        arrays = [
            place for place, leaf in enumerate(leaves) if Nests.is_array(leaf) and np.ndim(leaf) and not is_key(leaf)
        ]
        places = [place for place in arrays if not drawn or id(leaves[place]) in drawn]
        if not places and strategy.num_replicas_in_sync == 1:
            # One replica is given whole batches: also what the program has made of one that was drawn.
            places = [place for place in arrays if len(whole[place]) in drawn.values()]
        if places:
            first = len(whole[places[0]])
            places = [place for place in places if len(whole[place]) == first]
    if not places:
        return {}, 0
    batch = min(len(whole[place]) for place in places)
    found: dict[int, int] = {}
    for place in places:
        each, rest = divmod(len(whole[place]), max(batch, 1))
        if rest:
            raise CannotVerify("the arguments of the step have different numbers of rows")
        found[place] = each
    return found, batch
