"""`jd.Model`: its variables by their paths in the model, then the slots of its optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxtribute._src.checkpoint.leaves import Leaf, VariableLeaf
from jaxtribute._src.checkpoint.models.base import Key, register
from jaxtribute._src.integrations.model import Model


def _leaves(root: Any) -> Iterator[tuple[Key, Leaf]]:
    model: Model = root
    for path, variable in model.named_variables():
        yield path, VariableLeaf(variable)
    for slot in model.optimizer.variables if model.optimizer is not None else ():
        yield ("optimizer", *slot.name.removesuffix(":0").split("/")), VariableLeaf(slot)


register("jaxtribute", lambda value: isinstance(value, Model), _leaves)
