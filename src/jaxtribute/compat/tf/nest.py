"""`tf.nest`: structures of lists, tuples, dictionaries and named tuples.

Unlike in JAX's trees, None is a leaf, and so are variables and distributed values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

from jaxtribute._src.core.execution.nests import is_whole
from jaxtribute._src.core.types import Leaf, Nest


def _is_leaf(node: object) -> bool:
    return node is None or is_whole(node)


def flatten(structure: Nest, expand_composites: bool = False) -> list[Any]:
    """Returns the leaves in order, dictionaries by sorted keys. Source: `tf.nest.flatten`."""
    return jax.tree.leaves(structure, is_leaf=_is_leaf)


def map_structure(func: Callable[..., Any], *structure: Nest, **kwargs: object) -> Any:
    """Calls `func` on the leaves of structures alike, and keeps their structure. Source: `tf.nest.map_structure`."""
    return jax.tree.map(func, *structure, is_leaf=_is_leaf)


def pack_sequence_as(structure: Nest, flat_sequence: Iterable[Leaf], expand_composites: bool = False) -> Any:
    """Returns a structure like the one given with other leaves. Source: `tf.nest.pack_sequence_as`."""
    return jax.tree.structure(structure, is_leaf=_is_leaf).unflatten(list(flat_sequence))


def is_nested(structure: Nest) -> bool:
    """Returns whether it has leaves inside. Source: `tf.nest.is_nested`."""
    return not jax.tree_util.all_leaves([structure], is_leaf=_is_leaf)


def assert_same_structure(nest1: Nest, nest2: Nest, check_types: bool = True, expand_composites: bool = False) -> None:
    """Checks that two structures are alike.

    Raises:
      ValueError: they differ; the message shows both.

    Source: `tf.nest.assert_same_structure`.
    """
    first, second = (jax.tree.structure(nest, is_leaf=_is_leaf) for nest in (nest1, nest2))
    if first != second:
        raise ValueError(f"the structures differ: {first} and {second}. HINT: tf.nest.flatten shows the leaves.")
