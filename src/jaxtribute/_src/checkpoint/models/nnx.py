"""Flax NNX: modules, optimizers, metrics and random streams, by the variables of their graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import flax.nnx as nnx  # pyright: ignore[reportMissingImports]

from jaxtribute._src.checkpoint.leaves import CellLeaf, Leaf
from jaxtribute._src.checkpoint.models.base import Key, register

_nnx: Any = nnx


def _leaves(root: Any) -> Iterator[tuple[Key, Leaf]]:
    state = [root] if isinstance(root, _nnx.Variable) else None
    found = [((), root)] if state else _nnx.iter_graph(root)
    for path, value in found:  # what is shared comes once
        if isinstance(value, _nnx.Variable):
            yield tuple(map(str, path)), CellLeaf(value.get_value, value.set_value)


register("flax.nnx", lambda value: isinstance(value, (_nnx.Pytree, _nnx.Variable)), _leaves)
