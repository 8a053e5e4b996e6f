"""Keras objects on their way to workers: copied by their attributes, their variables staying on parameter servers.

Keras itself would save and load a model, which makes new variables, and needs all classes registered.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras

from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.internals import KerasModel, KerasOptimizer
from jaxtribute._src.addons.keras.variables import StrategyVariable, is_on_servers
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.typing import Foreign

if TYPE_CHECKING:
    from jaxtribute._src.addons.parameter_servers.scheduling.pickling import Watch

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

KINDS: tuple[type[Any], ...] = (
    internals.KerasSaveable,
    keras.Variable,
    internals.Namespace,
    *internals.tracked_dicts,
    *internals.tracked_lists,
)
"""Classes of Keras whose objects travel in a way of their own."""


class Sender:
    """The way of Keras's objects to workers, for `pickling.Pickler`."""

    @property
    def received(self) -> Callable[[bytes], Any]:
        """Unpickles on a worker, which may not have imported Keras yet."""
        from jaxtribute._src.addons.keras.unpickling import received

        return received

    def reduced(self, obj: Foreign) -> Any:
        """Form in which an object travels.

        Raises:
          ArgumentTypeError: a worker would train, or update, a copy of it.
        """
        if isinstance(obj, internals.Namespace):
            return internals.namespace_of(obj)
        if isinstance(obj, internals.tracked_dicts):
            return dict, (list(obj.items()),)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType, reportUnknownMemberType]
        if type(obj) in internals.tracked_lists:
            return internals.tracked_lists[type(obj)], (list(obj),)
        _check(obj)
        # Compiled functions and state of an epoch stay: they hold what cannot travel, and each worker makes its own.
        state = {name: None if name in _NOT_SENT else value for name, value in obj.__dict__.items()}
        if type(obj) is keras.Variable:
            # What is written later would not come to the copies: see `variables.PlainValue`.
            obj.__dict__.setdefault(internals.SENT, True)
            state[internals.SENT] = True
        elif isinstance(obj, keras.optimizers.Optimizer):
            for variable in obj.variables:  # workers apply gradients on servers, or not at all
                variable.__dict__.setdefault(internals.SENT, False)
        return bare, (type(obj),), state

    def completed(self, sent: Sequence[Foreign]) -> bool:
        """Brings the optimizers among objects onto the servers; True if one has changed by that."""
        from jaxtribute._src.addons.keras.server_optimizer import place_optimizer

        # An optimizer that scales losses holds another one, which is placed together with it.
        inner = {id(getattr(obj, "inner_optimizer", None)) for obj in sent}
        optimizers = [obj for obj in sent if isinstance(obj, keras.optimizers.Optimizer) and id(obj) not in inner]
        changed = False
        for optimizer in optimizers:
            changed |= place_optimizer(optimizer, _updated_by(optimizer, optimizers, sent))
        return changed

    def follow(self, sent: Sequence[Foreign], watch: Watch) -> None:
        """Has `watch` told when a layer is frozen or thawed, or gets other variables, and if an optimizer is built."""
        for obj in sent:
            if isinstance(obj, keras.optimizers.Optimizer) and not obj.built:
                watch.expect(functools.partial(getattr, obj, "built"))
            if isinstance(obj, StrategyVariable):
                if obj.stored.followers is None:
                    obj.stored.followers = weakref.WeakSet()
                obj.stored.followers.add(watch)


def bare(kind: type[Any]) -> Any:
    """An object without attributes, made without `__init__`."""
    return object.__new__(kind)


def _check(obj: Foreign) -> None:
    """Refuses what would be a copy, with variables of its own on each worker."""
    copied: Sequence[Any] = ()
    if isinstance(obj, keras.layers.Layer):
        copied = obj.trainable_variables
    elif isinstance(obj, keras.metrics.Metric):
        copied = obj.variables
    elif isinstance(obj, keras.Variable) and (obj.trainable or isinstance(obj, StrategyVariable)):
        copied = (obj,)
    if not all(map(is_on_servers, copied)):
        raise ArgumentTypeError(
            f"{type(obj).__name__} {obj.name!r} of Keras in a function for workers was not made in the strategy's "
            "scope: each worker would have a copy with variables of its own. HINT: make it in `with "
            "strategy.scope():`, outside of the function."
        )


def _updated_by(optimizer: KerasOptimizer, others: Sequence[Any], sent: Sequence[Foreign]) -> list[Any] | str:
    """The variables that an optimizer will update, or why they are not known."""
    if optimizer.built:
        return internals.updated_by(optimizer)
    layers = [obj for obj in sent if isinstance(obj, keras.layers.Layer) and obj.trainable_variables]
    for model in layers:
        if _owns(model, optimizer):
            return list(model.trainable_variables)
    unbuilt = [one for one in others if not one.built and not any(_owns(layer, one) for layer in layers)]
    largest: list[Any] = []
    for layer in layers:
        largest = max(largest, list(layer.trainable_variables), key=len)
    within = set(map(id, largest))
    # Of several models it may train one only.
    apart = [layer.name for layer in layers if not within.issuperset(map(id, layer.trainable_variables))]
    if largest and not apart and len(unbuilt) == 1:
        return largest
    return (
        f"it is not built, and the function that was scheduled holds {len(unbuilt)} such optimizers and "
        f"{len(largest)} variables of one model, with {', '.join(apart) or 'no other'} besides"
    )


def _owns(model: KerasModel, optimizer: KerasOptimizer) -> bool:
    return getattr(model, "optimizer", None) is optimizer
