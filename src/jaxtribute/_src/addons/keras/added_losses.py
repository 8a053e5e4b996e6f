"""The losses that layers add, where replicas take turns in Python, and where one layer is traced again and again.

Keras keeps them in attributes of the layer, and tells whose a loss is by its `id`.
"""

from __future__ import annotations

from typing import Any

import keras

from jaxtribute._src.addons.keras import internals
from jaxtribute.extending import Context, Tracer
from jaxtribute.typing import Foreign, Nest

_IDS = "_jaxtribute_loss_ids"


class OfReplica:
    """An attribute of layers, a list: each replica that runs as Python has its own.

    Such replicas take turns where they meet, and would go on with the losses of another one's call.

    Args:
      name: the attribute.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layer: Foreign, owner: type[Any] | None = None) -> Any:
        if layer is None:
            return self
        return vars(layer).setdefault(self._key(), [])

    def __set__(self, layer: Foreign, value: Nest) -> None:
        vars(layer)[self._key()] = value

    def _key(self) -> str:
        replica = Context.current().replica
        if replica is None or isinstance(replica.replica_id_in_sync_group, Tracer):
            return self._name  # replicas are traced one after the other
        number = int(replica.replica_id_in_sync_group)
        # The first one's are the layer's afterwards, as if it had run alone.
        return f"{self._name} {number}" if number else self._name


class IdsInScope:
    """The ids by which a layer knows its own losses: those of the scope in force, which keeps these losses.

    Kept on the layer, they outlive the losses of an earlier trace, and a loss of another layer may come to have one of
    them: Keras then drops it, or counts it twice.
    """

    def __get__(self, layer: Foreign, owner: type[Any] | None = None) -> Any:
        if layer is None:
            return self
        scope = internals.get_stateless_scope()
        if scope is None:
            return set[int]()
        return vars(scope).setdefault(_IDS, {}).setdefault(id(layer), (layer, set[int]()))[1]

    def __set__(self, layer: Foreign, value: Nest) -> None:
        """Layers begin without any."""


def keep_losses_apart() -> None:
    """Lets each replica that runs as Python, and each trace, have a layer's losses to itself."""
    for name in ("_losses", "_losses_override"):
        setattr(keras.Layer, name, OfReplica(name))
    setattr(keras.Layer, "_loss_ids", IdsInScope())  # noqa: B010 (an attribute that Keras sets on each object)
