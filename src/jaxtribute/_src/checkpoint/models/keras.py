"""Keras 3: models with their optimizers, layers, metrics, optimizers and single variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras  # pyright: ignore[reportMissingImports]

from jaxtribute._src.checkpoint.leaves import CellLeaf, Leaf, VariableLeaf
from jaxtribute._src.checkpoint.models.base import Key, register

_keras: Any = keras


def _leaves(root: Any) -> Iterator[tuple[Key, Leaf]]:
    if isinstance(root, _keras.Variable):
        yield (), _leaf(root)
        return
    yield from _numbered((), root.variables)
    optimizer = getattr(root, "optimizer", None) if isinstance(root, _keras.Model) else None
    if optimizer is not None:
        yield from _numbered(("optimizer",), optimizer.variables)


def _numbered(prefix: Key, variables: Any) -> Iterator[tuple[Key, Leaf]]:
    """Names that do not depend on how many models were made before, as Keras's own paths do."""
    for place, variable in enumerate(variables):
        name = variable.name.rpartition("_")[2] if prefix else variable.name
        yield (*prefix, f"{place}_{name}"), _leaf(variable)


def _leaf(variable: Any) -> Leaf:
    stored = getattr(variable, "stored", None)  # under a strategy
    if stored is not None:
        return VariableLeaf(stored)
    return CellLeaf(lambda: variable.value, variable.assign)


def _accepts(value: Any) -> bool:
    kinds = (_keras.Layer, _keras.Optimizer, _keras.Metric, _keras.Variable)
    return isinstance(value, kinds)


register("keras", _accepts, _leaves)
