"""Keras in checkpoints: which of its objects hold state, and where."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from jaxtribute.extending import StateAdapter, points
from jaxtribute.typing import Foreign


def _of_keras(root: Foreign) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Variables of a model and of the optimizers that it has, or those of a layer, a metric or an optimizer."""
    keras = sys.modules["keras"]
    if isinstance(root, keras.Variable):
        yield (), _cell(root)
        return
    # An optimizer's variables have the names of layers in theirs, which count the models that were made before.
    yield from _numbered((), root.variables, last=isinstance(root, keras.Optimizer))
    if isinstance(root, keras.Model):
        for path, optimizer in optimizers_of(root):
            yield from _numbered(path, optimizer.variables, last=True)


def optimizers_of(model: Foreign) -> Iterator[tuple[tuple[str, ...], Foreign]]:
    """The optimizer of `compile`, and those that a model and the models in it keep as attributes, each once."""
    keras, seen = sys.modules["keras"], set[int]()

    def found(path: tuple[str, ...], owner: Foreign) -> Iterator[tuple[tuple[str, ...], Foreign]]:
        for name, value in [("optimizer", getattr(owner, "optimizer", None)), *sorted(vars(owner).items())]:
            if isinstance(value, (keras.Optimizer, keras.Model)) and id(value) not in seen:
                seen.add(id(value))
                below = (*path, name)
                yield from [(below, value)] if isinstance(value, keras.Optimizer) else found(below, value)

    return found((), model)


def _numbered(
    prefix: tuple[str, ...], variables: Iterable[Foreign], *, last: bool
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Names that do not depend on how many models were made before, as Keras's own paths do."""
    for place, variable in enumerate(variables):
        name = variable.name.rpartition("_")[2] if last else variable.name
        yield (*prefix, f"{place}_{name}"), _cell(variable)


def names_of_slots(optimizer: Foreign) -> dict[str, str]:
    """The names of an optimizer's variables in a checkpoint, with dtypes and shapes as a restore tells them."""
    names = (".".join(key) for key, _ in _numbered((), optimizer.variables, last=True))
    kinds = (f"{variable.dtype}{list(variable.shape)}" for variable in optimizer.variables)
    return dict(zip(names, kinds, strict=True))


def _cell(variable: Foreign) -> Any:
    stored = getattr(variable, "stored", None)  # under a strategy
    if stored is not None:
        return stored
    return lambda: variable.value, variable.assign


points.STATEFUL.register(StateAdapter("keras", ("Layer", "Optimizer", "Metric", "Variable"), _of_keras))
