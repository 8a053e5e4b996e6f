"""Checks for uses of Keras's methods that a strategy refuses, with advice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras import callbacks as keras_callbacks

from jaxtribute._src.addons.keras.data import creator_of
from jaxtribute._src.addons.keras.internals import KerasModel, is_default, parts_of
from jaxtribute._src.addons.keras.variables import on_servers
from jaxtribute.errors import ArgumentError, ContextError, VariableError
from jaxtribute.typing import Foreign, Leaf

if TYPE_CHECKING:
    from jaxtribute import Strategy

_HOOKS = ("batch_begin", "batch_end")
_NOT_FOR_CREATORS = ("y", "sample_weight", "batch_size", "class_weight")


def check_call(
    method: Callable[..., Any], model: KerasModel, strategy: Strategy, args: Sequence[Leaf], kwargs: Mapping[str, Leaf]
) -> None:
    """Checks a call of `fit`, `evaluate` or `predict`, or of one of their like.

    Raises:
      ContextError: under parameter servers, the model runs eagerly, or its data are not made by workers.
      ArgumentError: under parameter servers, callbacks that want to see every batch.
      VariableError: a layer keeps a state for each row of a batch, and replicas share the rows.
    """
    if not on_servers(strategy):
        _check_states(model, strategy)
        return
    if getattr(model, "run_eagerly", False):
        raise ContextError(
            f"run_eagerly=True under {strategy!r}, whose workers compile steps. HINT: compile the model without it; "
            "jd.OneDeviceStrategy runs a model eagerly."
        )
    # By the names of the parameters: `x` may be given by place or by name.
    name = method.__name__
    given = inspect.signature(method).bind(model, *args, **kwargs).arguments
    creator = creator_of(given.get("x"))
    if name == "fit":
        if creator is None:
            raise ContextError(
                f"fit under {strategy!r} was given x of type {type(given.get('x')).__name__}: each worker must make "
                "its own data. HINT: pass jd.experimental.DatasetCreator(dataset_fn) or the function itself, with "
                "steps_per_epoch."
            )
        _check_callbacks(given.get("callbacks"), "train")
        if creator_of(given.get("validation_data")) is not None:
            _check_callbacks(given.get("callbacks"), "test")
    elif name == "evaluate" and creator is not None:
        _check_callbacks(given.get("callbacks"), "test")
    elif name == "predict" and creator is not None:
        raise ContextError(
            f"predict under {strategy!r} was given a function that makes datasets: workers' results have no order. "
            "HINT: pass arrays or a dataset, which the coordinator reads, or schedule predictions by a "
            "jd.coordinator.ClusterCoordinator."
        )


def _check_states(model: KerasModel, strategy: Strategy) -> None:
    keeping = [layer.name for layer in parts_of(model) if getattr(layer, "stateful", False) and hasattr(layer, "cell")]
    replicas = strategy.num_replicas_in_sync
    if keeping and replicas > 1:
        raise VariableError(
            f"{keeping[0]!r} is stateful: it keeps a state for each row of a batch, but the {replicas} replicas of "
            f"{strategy!r} share the rows. HINT: make it with stateful=False, or train on one device."
        )


def check_plain(method: Callable[..., Any], model: KerasModel, strategy: Strategy) -> None:
    """Checks that a plain model is not trained in the scope of a strategy, which would not take part.

    Raises:
      VariableError: it is, and the strategy has several replicas or workers.
    """
    if not method.__name__.startswith(("fit", "train")):
        return
    if on_servers(strategy) or strategy.num_replicas_in_sync > 1 or strategy.extended.mesh.peers is not None:
        raise VariableError(
            f"{method.__name__} of {model.name!r} in the scope of {strategy!r}, but the model was made and compiled "
            "outside: it would be trained on one device, and on each worker by itself. HINT: make and compile the "
            f"model in the scope; to train it on one device, call {method.__name__} outside of the scope."
        )


def check_input(given: Leaf, adapter: Foreign, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Checks what goes with a function that makes datasets.

    Args:
      given: the data as given.
      adapter: the data as Keras reads them.
      args: positional arguments of Keras's epoch iterator behind the data.
      kwargs: its keyword arguments.

    Raises:
      ArgumentError: arrays or weights besides; no number of steps if nothing else ends an epoch.
    """
    if creator_of(given) is None:
        return
    named = {**dict(zip(("y", "sample_weight", "batch_size", "steps_per_epoch"), args, strict=False)), **kwargs}
    extra = [name for name in _NOT_FOR_CREATORS if named.get(name) is not None]
    if extra:
        raise ArgumentError(
            f"{', '.join(extra)} with a function that makes datasets. HINT: let the dataset give batches of "
            "(x, y) or (x, y, sample_weight)."
        )
    if hasattr(adapter, "like_a_batch") and not named.get("steps_per_epoch"):
        raise ArgumentError(
            "data that workers make for themselves need a number of steps. HINT: pass steps_per_epoch to fit, "
            "validation_steps with validation_data, steps to evaluate; and repeat() the dataset."
        )


def _check_callbacks(given: Leaf, phase: str) -> None:
    """Checks that callbacks need no more than epochs.

    Raises:
      ArgumentError: one has a method for batches.
    """
    # Keras takes one callback, several, or a list that it has wrapped before.
    listed: Iterable[Any] = given.callbacks if isinstance(given, keras_callbacks.CallbackList) else given or ()
    listed = listed if isinstance(listed, (list, tuple)) else [listed]
    found = [callback for callback in listed if _wants_batches(callback, phase)]
    if found:
        names = ", ".join(type(callback).__name__ for callback in found)
        raise ArgumentError(
            f"callbacks that want to see every batch: {names}; under parameter servers many batches run at once. "
            "HINT: use on_epoch_begin and on_epoch_end, and save_freq='epoch'; steps_per_epoch says how long one is."
        )


def _wants_batches(callback: Foreign, phase: str) -> bool:
    # Named by the callback: `save_freq` of checkpoints, `update_freq` of TensorBoard.
    frequency = getattr(callback, "save_freq", getattr(callback, "update_freq", None))
    if isinstance(frequency, int) or frequency == "batch":
        return True
    for hook in _HOOKS:
        method = getattr(callback, f"on_{phase}_{hook}")
        # Keras's own callbacks do in these methods what need not see every batch, such as drawing the progress bar.
        if not is_default(method) and not _module(method).startswith("keras."):
            return True
    return False


def _module(method: Foreign) -> str:
    return getattr(method, "__module__", None) or ""
