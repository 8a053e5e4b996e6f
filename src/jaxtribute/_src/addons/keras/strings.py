"""Strings in Keras: models of them, such as those that begin with a `StringLookup`, compute on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute.errors import ArgumentError, MissingLibraryError
from jaxtribute.extending import Context
from jaxtribute.typing import Foreign, Leaf, Nest


def check_strings(**given: Nest) -> None:
    """Refuses arrays of strings for `fit`, `evaluate` and `predict`, which compute on devices.

    Args:
      given: the data, by the names of what the caller calls them.

    Raises:
      ArgumentError: there are some.
    """
    for name, nest in given.items():
        # Generators and data sets are no nests.
        for leaf in jax.tree.leaves(nest, is_leaf=lambda node: not isinstance(node, (dict, list, tuple))):
            kind = getattr(getattr(leaf, "dtype", None), "kind", "")
            first = leaf.flat[0] if kind == "O" and getattr(leaf, "size", 0) else ""
            if kind in ("U", "S") or (kind == "O" and isinstance(first, (str, bytes))):
                raise ArgumentError(
                    f"{name} holds strings, an array of {leaf.dtype} of shape {leaf.shape}, and JAX has none. "
                    "HINT: turn them into numbers first, by np.unique(strings, return_inverse=True)[1] or by "
                    "jaxtribute.integrations.keras.StringLookup in the `map` of a dataset; a model that looks strings "
                    "up can be called, model(x), as it does so on the host."
                )


_OURS = frozenset({"IntegerLookup", "StringLookup", "TextVectorization"})
"""The layers that work without TensorFlow here."""


def made_without_tensorflow(original: Callable[..., Any], layer: Foreign, *args: Leaf, **kwargs: Leaf) -> None:
    """The `__init__` of a layer of Keras that needs TensorFlow: without it says, in a scope, what to use in its place.

    Raises:
      MissingLibraryError: TensorFlow is missing.
    """
    try:
        original(layer, *args, **kwargs)
    except ImportError as error:
        if Context.current().strategy.is_default:
            raise
        name = next(kind.__name__ for kind in type(layer).__mro__ if internals.is_keras(kind))
        instead = (
            f"use jaxtribute.integrations.keras.{name}, which works on the host without it"
            if name in _OURS
            else "without it, turn values into numbers in the `map` of a dataset, by a hash of your own such as "
            "zlib.crc32(text.encode()) % num_bins, or by jaxtribute.integrations.keras.StringLookup or IntegerLookup, "
            "which have a vocabulary"
        )
        raise MissingLibraryError(
            f"keras.layers.{name} needs TensorFlow, which is not installed. HINT: {instead}."
        ) from error


def check_batch(batch: Nest) -> None:
    """Refuses a batch with strings, as `check_strings` does."""
    check_strings(**dict(zip(("x", "y", "sample_weight"), keras.utils.unpack_x_y_sample_weight(batch), strict=True)))


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
