"""Keras variables as parameter servers hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxtribute._src.integrations.keras.internals import KerasVariable
from jaxtribute._src.integrations.keras.variables import is_on_servers


def shards(variables: Iterable[KerasVariable]) -> list[Any]:
    """Returns variables with each that a `variable_partitioner` has split replaced by its shards, in order of rows.

    In TensorFlow `layer.weights` lists the shards. Here a layer's variable is one, whatever the servers do: in Keras 3
    the layer computes with it, gradients are by it, and `trainable_weights`, `get_weights` and `set_weights` are made
    of `weights`.

    Args:
      variables: such as `layer.weights` of a model on parameter servers. Variables of other strategies, and plain
        ones, are returned as they are.

    Returns:
      Variables of parameter servers, with `shape`, `device`, `numpy` and `assign`.

    Source: `ShardedVariable.variables` of TensorFlow's `tf.distribute`.
    """
    found: list[Any] = []
    for variable in variables:
        if is_on_servers(variable):
            stored: Any = variable.stored
            found.extend(stored.variables if stored.layout.split else [stored])
        else:
            found.append(variable)
    return found
