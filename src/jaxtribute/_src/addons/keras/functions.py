"""Functions of arrays that are called with a Keras model's symbolic tensors: each call becomes a step of the model."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import keras
import numpy as np

from jaxtribute._src.addons.keras import internals
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import Leaf, Nest

_HOMES = ("jaxtribute.compat.tf", "jaxtribute.compat.tf.math", "jaxtribute.compat.tf.nn")


# Models' files know it by this registered name. What looks for symbols is `compat.tf.symbolic`, as that loads without
# Keras.
@keras.saving.register_keras_serializable("jaxtribute")
class FunctionOperation(keras.Operation):
    """A function of arrays as a step of a Keras model.

    Args:
      function: where it is: its module and its name, such as `jaxtribute.compat.tf.math.reduce_mean`.
      name: the step's name.
    """

    def __init__(self, function: str, name: str | None = None) -> None:
        super().__init__(name=name)
        self.function = function

    def call(self, *args: Nest, **kwargs: Nest) -> Any:
        """Calls the function, of arrays now."""
        module, _, name = self.function.rpartition(".")
        if module not in _HOMES:  # a model's file may name anything
            raise ArgumentError(f"{self.function} is no function of {_HOMES[0]}. HINT: is the model's file damaged?")
        # Keras takes some symbolic tensors for sparse, such as products with numbers, while it finds shapes.
        dense: Any = keras.tree.map_structure(_dense, (args, kwargs))
        args, kwargs = dense
        return getattr(import_module(module), name)(*args, **kwargs)

    def compute_output_spec(self, *args: Nest, **kwargs: Nest) -> Any:
        """The shapes and dtypes of its results, for those of its arguments."""
        return internals.output_spec(self.call, *args, **kwargs)


def apply_symbolically(function: str, args: Nest, kwargs: Nest) -> Any:
    """Adds a call of a function to a model that is being built; returns its symbolic results."""
    given: Any = keras.tree.map_structure(_as_config, (args, kwargs))
    return FunctionOperation(function)(*given[0], **given[1])


def _as_config(value: Leaf) -> Any:
    """A constant argument as a model's file can hold it."""
    return value.name if isinstance(value, np.dtype) else value


def _dense(value: Leaf) -> Any:
    return value.todense() if hasattr(value, "todense") else value
