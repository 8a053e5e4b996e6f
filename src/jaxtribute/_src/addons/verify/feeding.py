"""The state of a step that takes it and returns it: which of its results are arguments of the next call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute.extending import Nests


def paths_of(nest: Any) -> list[tuple[str, str]]:
    """For each leaf of a call's `(args, kwargs)` the argument that it is of, and where it stands there."""
    paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(nest, is_leaf=Nests.is_whole))
    return [(jax.tree_util.keystr(path[:2]), jax.tree_util.keystr(path[2:])) for path in paths]


def is_seed(value: Any) -> bool:
    """True for random keys, those of the old kind too."""
    return is_key(value) or (np.dtype(value.dtype) == np.uint32 and value.shape[-1:] == (2,))


def returned(
    paths: Sequence[tuple[str, str]], leaves: Sequence[Any], split: Collection[int], outputs: Mapping[str, Any]
) -> dict[str, int]:
    """Pairs results with the arguments that have their structure and shapes, each as a whole.

    Args:
      paths: see `paths_of`.
      leaves: the arguments.
      split: places of those that are batches.
      outputs: the results of one device, by path.

    Returns:
      By the path of a result the place of its argument.
    """
    arguments: dict[str, list[int]] = {}
    for place, (argument, _) in enumerate(paths):
        arguments.setdefault(argument, []).append(place)
    found: dict[str, int] = {}
    for places in arguments.values():
        arrays = [place for place in places if Nests.is_array(leaves[place])]
        # A number alone, such as a threshold, has the shape of any other.
        numbers = len(arrays) == 1 and np.ndim(leaves[arrays[0]]) == 0
        if not arrays or numbers or any(place in split for place in places):
            continue
        rest = paths[arrays[0]][1]
        for name in outputs:
            prefix = name.removesuffix(rest)
            names = [prefix + paths[place][1] for place in arrays]
            fits = (
                one not in found and _alike(outputs.get(one), leaves[place])
                for one, place in zip(names, arrays, strict=True)
            )
            if name.endswith(rest) and all(fits):
                found.update(zip(names, arrays, strict=True))
                break
    return found


def _alike(result: Any, leaf: Any) -> bool:
    if result is None or isinstance(result, tuple) or np.shape(result) != np.shape(leaf):
        return False
    if is_key(result) or is_key(leaf):
        return is_key(result) and is_key(leaf)
    return _kind(result) == _kind(leaf)


def _kind(value: Any) -> str:
    kind = value.dtype.kind
    return "f" if kind == "V" else kind  # bfloat16
