"""A Keras model on its way to a worker: copied as it is, but for its variables, which stay on parameter servers."""

from __future__ import annotations

from typing import Any

import keras

from jaxtribute._src.integrations.keras import inside
from jaxtribute._src.integrations.keras.remote import runner
from jaxtribute._src.parameter_servers.scheduling import pickling
from jaxtribute._src.parameter_servers.scheduling.per_worker import PerWorkerValues

_NOT_SENT = dict.fromkeys(
    (
        "train_function",
        "test_function",
        "predict_function",
        "history",
        "_jax_state",
        "_eval_epoch_iterator",
        "_jaxtribute_servers",
    )
)
"""Attributes of models that belong to the coordinator's process."""


class ModelPickler(pickling.Pickler):
    """Copies Keras objects by their attributes, so that they need no `get_config`.

    Keras itself would save and load a model, which makes new variables, and needs all classes registered.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Form in which an object travels."""
        if isinstance(obj, (inside.KerasSaveable, keras.Variable)):
            state = {name: None if name in _NOT_SENT else value for name, value in obj.__dict__.items()}
            return bare, (type(obj),), state
        if isinstance(obj, inside.tracked_dicts):
            return dict, (list(obj.items()),)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType, reportUnknownMemberType]
        if type(obj) in inside.tracked_lists:
            return inside.tracked_lists[type(obj)], (list(obj),)
        return super().reducer_override(obj)


def bare(kind: type[Any]) -> Any:
    """An object without attributes, made without `__init__`."""
    return object.__new__(kind)


def shipped_runner(model: Any, optimizer: Any) -> PerWorkerValues:
    """A model's steps, as each worker gets its own of."""
    blob = pickling.dumps((model, optimizer), ModelPickler)
    return PerWorkerValues(lambda: runner(blob))
