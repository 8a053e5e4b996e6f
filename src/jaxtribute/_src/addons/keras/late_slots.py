"""Optimizers that are built after a checkpoint is restored: their slots are made before, so that they get its values.

Keras makes an optimizer's slots in its first step, and TensorFlow's checkpoints wait for them. Here the variables that
it was built for are found by trial: of a model in the checkpoint whose variables give slots of the names, shapes and
dtypes that were saved.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import keras

from jaxtribute._src.addons.keras.internals import KerasOptimizer
from jaxtribute._src.addons.keras.state import names_of_slots, optimizers_of
from jaxtribute._src.addons.keras.variables import StrategyVariable
from jaxtribute.typing import Foreign

_NOT_OURS = frozenset({"builtins", "grain", "jax", "jaxlib", "jaxtribute", "numpy", "optax"})
"""Libraries whose objects are not looked into."""


def build(trackables: Mapping[str, Any], unexpected: Sequence[str]) -> tuple[bool, list[str]]:
    """Builds optimizers whose slots a checkpoint has.

    Args:
      trackables: what is restored, by name.
      unexpected: `name: dtype[shape]` of the values that only the checkpoint has.

    Returns:
      True if any was built, and the names of those that were not, though their slots were saved.
    """
    found = list(_found((), trackables, set()))
    layers = {id(one): (key, one) for key, one in found if isinstance(one, keras.Layer)}
    optimizers = {id(one): (key, one) for key, one in found if isinstance(one, keras.Optimizer)}
    built, left = False, list[str]()
    for key, optimizer in optimizers.values():
        start = ".".join(key) + "."
        saved = {line.removeprefix(start) for line in unexpected if line.startswith(start)}
        if optimizer.built or not saved:
            continue
        fitting = [(name, layer) for name, layer in layers.values() if _slots(optimizer, layer) == saved]
        # Of several that are alike, as twins are, the one whose name the optimizer's has.
        if len(fitting) > 1:
            fitting = [(name, layer) for name, layer in fitting if name[-1] in key[-1] or name == key[:-1]]
        if len(fitting) == 1:
            _build(optimizer, fitting[0][1])
            built = True
        else:
            left.append(".".join(key))
    return built, left


def _slots(optimizer: KerasOptimizer, layer: Foreign) -> set[str] | None:
    """The values that an optimizer's checkpoint would have for a layer's variables; None if that cannot be tried."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of Keras, of its own numbers
            trial = type(optimizer).from_config(optimizer.get_config())
            before = set(names_of_slots(trial))
            _build(trial, layer)
        return {f"{name}: {kind}" for name, kind in names_of_slots(trial).items() if name not in before}
    except Exception:  # noqa: BLE001 (a class of the user's may do without a configuration)
        return None


def _build(optimizer: KerasOptimizer, layer: Foreign) -> None:
    variables = layer.trainable_variables
    strategy = next((one.strategy for one in variables if isinstance(one, StrategyVariable)), None)
    with nullcontext() if strategy is None or strategy.is_default else strategy.scope():
        optimizer.build(variables)


def _found(key: tuple[str, ...], value: Any, seen: set[int]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The layers and optimizers in what a checkpoint keeps, by their names there."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (keras.Layer, keras.Optimizer)):
        yield key, value
        for path, optimizer in optimizers_of(value) if isinstance(value, keras.Model) else ():
            yield (*key, *path), optimizer
        return
    if hasattr(value, "_trackables"):  # a checkpoint within
        items = value._trackables
    elif isinstance(value, (list, tuple)):
        items = dict(enumerate(value))
    else:
        theirs = type(value).__module__.partition(".")[0] in _NOT_OURS
        items = value if isinstance(value, Mapping) else {} if theirs else getattr(value, "__dict__", {})
    for name, each in items.items():
        yield from _found((*key, str(name)), each, seen)
