"""Keras models of strings, such as those that begin with a `StringLookup`: their inputs stay on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute.typing import Leaf, Nest


def unchecked(original: Callable[..., Any], model: KerasModel, *args: Nest) -> None:
    """Checks a model's inputs, unless they are strings, which may come one example at a time."""
    if not _takes_strings(model):
        original(model, *args)


def host_inputs(original: Callable[..., Any], model: KerasModel, inputs: Nest) -> Any:
    """A model's inputs in a list, strings as NumPy has them."""
    if not _takes_strings(model):
        return original(model, inputs)
    flat: list[Any] = keras.tree.flatten(inputs)
    if len(flat) != len(model.inputs):
        flat = [np.asarray(inputs)]  # one array, as lists of lists
    return [_conformed(value, symbol) for value, symbol in zip(flat, model.inputs, strict=True)]


def _takes_strings(model: KerasModel) -> bool:
    return any(symbol.dtype == "string" for symbol in model.inputs)


def _conformed(value: Leaf, symbol: Any) -> Any:
    """One input with a last axis of length 1 where the model has it, and without where the model has none."""
    array: Any = np.asarray(value) if symbol.dtype == "string" else keras.ops.convert_to_tensor(value, symbol.dtype)
    rank, wanted = len(array.shape), len(symbol.shape)
    if rank == wanted + 1 and array.shape[-1] == 1:
        return array[..., 0]
    if rank == wanted - 1 and symbol.shape[-1] == 1:
        return array[..., None]
    return array
