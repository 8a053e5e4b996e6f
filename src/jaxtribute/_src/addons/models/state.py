"""`jd.Model` and modules of Flax NNX in checkpoints: which of their objects hold state, and where."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from jaxtribute.extending import StateAdapter, points
from jaxtribute.typing import Foreign


def _of_model(model: Foreign) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Variables by their paths in the model, then the slots of its optimizer."""
    yield from model.named_variables()
    for slot in model.optimizer.variables if model.optimizer is not None else ():
        yield ("optimizer", *StateAdapter.slot_key(slot.name)), slot


def _of_nnx(root: Foreign) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Variables of the object's graph; one that several objects share comes once."""
    nnx = sys.modules["flax.nnx"]
    found = [((), root)] if isinstance(root, nnx.Variable) else nnx.iter_graph(root)
    for path, value in found:
        if isinstance(value, nnx.Variable):
            yield tuple(map(str, path)), (value.get_value, value.set_value)


points.STATEFUL.register(StateAdapter(f"{__package__}.model", ("Model",), _of_model))
points.STATEFUL.register(StateAdapter("flax.nnx", ("Pytree", "Variable"), _of_nnx))
