"""A Keras optimizer whose variables are on parameter servers, beside those that it updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxtribute._src.integrations.keras.transform import KerasTransform, nested
from jaxtribute._src.integrations.keras.variables import adopt, keep_in
from jaxtribute._src.optimizer.optimizer import Optimizer
from jaxtribute._src.parameter_servers.variables.variable import ServerVariable
from jaxtribute.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtribute._src.strategies.base import Strategy

_ATTRIBUTE = "_jaxtribute_on_servers"


def optimizer_on_servers(model: Any, strategy: Strategy) -> Optimizer | None:
    """Function that applies the gradients of a built model's optimizer on the servers; None if nothing is trained.

    The Keras optimizer's variables are what the servers keep from then on.

    Raises:
      ArgumentError: it asks more of variables than their values, and they are on several servers.
    """
    variables = list(model.trainable_variables)
    keras_optimizer = model.optimizer
    if not variables:
        for variable in keras_optimizer.variables:
            adopt(variable, strategy)
        return None
    known = keras_optimizer.__dict__.get(_ATTRIBUTE)
    if known is not None and known[0] == [id(variable) for variable in variables]:
        return known[1]
    transform = KerasTransform(keras_optimizer, variables)
    stored: list[ServerVariable] = [variable.stored for variable in variables]
    owners = transform.owners(stored)
    _check_alike(transform, stored, [variable.shape for variable in keras_optimizer.variables], owners)
    with strategy.scope():
        optimizer = Optimizer(transform, stored)  # pyright: ignore[reportArgumentType] (all that it asks for)
    places = jax.tree.leaves(nested(range(len(owners)), owners))
    for place, slot in zip(places, optimizer.variables, strict=True):
        variable = keras_optimizer.variables[place]
        value = np.asarray(variable.value)
        if owners[place] is None or np.any(value):
            slot.assign(value)
        keep_in(variable, slot, strategy)
    object.__setattr__(keras_optimizer, _ATTRIBUTE, ([id(variable) for variable in variables], optimizer))
    return optimizer


def _check_alike(transform: KerasTransform, stored: list[ServerVariable], shapes: list[Any], owners: list[Any]) -> None:
    if len({shard.server for variable in stored for shard in variable.layout.shards}) == 1 and not any(
        variable.layout.split for variable in stored
    ):
        return
    odd = [shape for shape, owner in zip(shapes, owners, strict=True) if owner is None and len(shape)]
    if transform.told_apart or odd:
        what = ", ".join(transform.told_apart) or f"the whole variables, for slots of shapes {odd}"
        raise ArgumentError(
            f"the optimizer must know {what} apart, for a constraint, an exclusion from weight decay or a slot of "
            "another shape, and the model is on several parameter servers. HINT: use one server and no partitioner, "
            "or do without."
        )
