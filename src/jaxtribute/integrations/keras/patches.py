"""The places where Keras asks about strategies. Outside every scope, and for plain models, all is as it was."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from keras.src import backend
from keras.src.backend.config import is_nnx_enabled
from keras.src.backend.jax import nn
from keras.src.backend.jax.trainer import JAXEpochIterator, JAXTrainer
from keras.src.layers import BatchNormalization
from keras.src.losses import loss
from keras.src.models.model import Model
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.trainers.trainer import Trainer

from jaxtribute import context as contexts
from jaxtribute.errors import ArgumentError, ConfigError
from jaxtribute.integrations.keras import checks, trainer, workers
from jaxtribute.integrations.keras.additivity import checked_updates
from jaxtribute.integrations.keras.data import DistributedAdapter, adapted, readable
from jaxtribute.integrations.keras.loops import initialized_now, summed_gradients
from jaxtribute.integrations.keras.share import (
    synchronizable,
    whole_batch_gradients,
    whole_batch_losses,
    whole_batch_moments,
)
from jaxtribute.integrations.keras.variables import new_variable

Method = Callable[..., Any]

_SHOWN = ("fit", "evaluate", "predict")
_IN_SCOPE = (*_SHOWN, "train_on_batch", "test_on_batch", "predict_on_batch")
_MAKERS = {
    "train_function": trainer.make_train_function,
    "test_function": trainer.make_test_function,
    "predict_function": trainer.make_predict_function,
}


def patch() -> None:
    """Teaches Keras's JAX backend about strategies.

    Raises:
      ConfigError: Keras keeps its variables in Flax NNX.
    """
    if is_nnx_enabled():
        raise ConfigError(
            "Keras runs with KERAS_NNX_ENABLED=true, which keeps its variables in Flax NNX and out of strategies' "
            "reach. HINT: unset KERAS_NNX_ENABLED."
        )
    _replace(backend.Variable, "__new__", staticmethod(new_variable))
    _replace(JAXTrainer, "__init__", _remembering(JAXTrainer.__init__))
    _replace(Trainer, "compile", _in_scope(Trainer.compile))  # where Keras looks whether a model has its own
    for name in _IN_SCOPE:
        _replace(JAXTrainer, name, _in_scope(getattr(JAXTrainer, name)))
    for name in ("save", "save_weights", "export"):
        _replace(Model, name, _written_once(getattr(Model, name)))
    for name, make in _MAKERS.items():
        _replace(JAXTrainer, f"make_{name}", _making(getattr(JAXTrainer, f"make_{name}"), name, make))
    _replace(JAXTrainer, "_get_jax_state", _stateless(JAXTrainer._get_jax_state))  # pyright: ignore[reportPrivateUsage]
    _replace(JAXTrainer, "_update_metrics_variables", checked_updates(JAXTrainer._update_metrics_variables))  # pyright: ignore[reportPrivateUsage]
    _replace(JAXTrainer, "jax_state_sync", _finished(JAXTrainer.jax_state_sync))
    _replace(Trainer, "_symbolic_build", _built_on_sample(Trainer._symbolic_build))  # pyright: ignore[reportPrivateUsage]
    _replace(Trainer, "_get_metrics_result_or_logs", _of_workers(Trainer._get_metrics_result_or_logs))  # pyright: ignore[reportPrivateUsage]
    _replace(JAXEpochIterator, "__init__", _adapting(JAXEpochIterator.__init__))
    _replace(JAXEpochIterator, "_get_iterator", _on_host(JAXEpochIterator._get_iterator))  # pyright: ignore[reportPrivateUsage]
    _replace(JAXEpochIterator, "_interrupted_warning", _expected(JAXEpochIterator._interrupted_warning))  # pyright: ignore[reportPrivateUsage]
    _replace(loss, "reduce_weighted_values", whole_batch_losses(loss.reduce_weighted_values))
    _replace(nn, "moments", whole_batch_moments(nn.moments))
    _replace(BatchNormalization, "__init__", synchronizable(BatchNormalization.__init__))
    for optimizer in (BaseOptimizer, LossScaleOptimizer):
        _replace(optimizer, "stateless_apply", whole_batch_gradients(optimizer.stateless_apply))
        _replace(optimizer, "apply", summed_gradients(optimizer.apply))
    _replace(
        backend.Variable, "_initialize_with_initializer", initialized_now(backend.Variable._initialize_with_initializer)
    )


def _replace(owner: Any, name: str, new: Any) -> None:
    setattr(owner, name, new)


def _remembering(original: Method) -> Method:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        strategy = contexts.current().strategy
        if not strategy.is_default:
            trainer.remember(self, strategy)

    return init


def _in_scope(original: Method) -> Method:
    """A method of models that runs in the scope of the model's strategy."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = trainer.strategy_of(self)
        if strategy is None:
            return original(self, *args, **kwargs)
        if original.__name__ in _IN_SCOPE:
            checks.check_call(original, self, strategy, args, kwargs)
        if original.__name__ in _SHOWN and not workers.is_first(strategy):
            args, kwargs = workers.silenced(original, self, args, kwargs)
        with strategy.scope():
            return original(self, *args, **kwargs)

    return method


def _written_once(original: Method) -> Method:
    """`save` and its like: of several workers the first writes the file.

    It does so outside the scope, where other workers need not take part in what Keras makes for it.
    """

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = trainer.strategy_of(self)
        if strategy is None:
            return original(self, *args, **kwargs)
        if not workers.is_first(strategy):
            return None
        with contexts.entered(contexts.fallback.make()):
            return original(self, *args, **kwargs)

    return method


def _making(original: Method, name: str, make: Callable[[Any, Any], trainer.Function]) -> Method:
    """`make_train_function` and its like."""

    @functools.wraps(original)
    def method(self: Any, force: bool = False) -> Any:
        strategy = trainer.strategy_of(self)
        if strategy is None:
            return original(self, force=force)
        if force or getattr(self, name) is None:
            setattr(self, name, make(self, strategy))
        return getattr(self, name)

    return method


def _stateless(original: Method) -> Method:
    """`_get_jax_state`: between steps a strategy's variables hold the values themselves, and nothing is passed on."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = [kwargs[name] for name in kwargs if name != "purge_model_variables" and kwargs[name]]
        return tuple(() for _ in state) if trainer.strategy_of(self) else original(self, *args, **kwargs)

    return method


def _adapting(original: Method) -> Method:
    """`__init__` of an epoch's iterator, which takes distributed datasets as well."""

    @functools.wraps(original)
    def init(self: Any, x: Any, *args: Any, **kwargs: Any) -> None:
        strategy, x = contexts.current().strategy, readable(x)
        if not strategy.is_default:
            given, x = x, adapted(x, strategy)
            checks.check_input(given, x, args, kwargs)
            if isinstance(x, DistributedAdapter) and kwargs.get("class_weight") is not None:
                raise ArgumentError(
                    f"class_weight={kwargs['class_weight']!r} with a dataset that is distributed already. HINT: let "
                    "the dataset give weights as the third part of its elements: (x, y, sample_weight)."
                )
        original(self, x, *args, **kwargs)

    return init


def _expected(original: Method) -> Method:
    """`_interrupted_warning`: a distributed dataset, whose length is not known, may end."""

    @functools.wraps(original)
    def method(self: Any) -> None:
        if self.steps_per_epoch or not isinstance(self.data_adapter, DistributedAdapter):
            original(self)

    return method


def _built_on_sample(original: Method) -> Method:
    """`_symbolic_build`: where workers make the batches, shapes come from the coordinator's own."""

    @functools.wraps(original)
    def method(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        sample = getattr(getattr(iterator, "data_adapter", None), "like_a_batch", None)
        original(self, iterator if sample is None else [(0, 0, sample())], data_batch)

    return method


def _finished(original: Method) -> Method:
    """`jax_state_sync`, which callbacks that look at the model call as well: waits for what runs on workers."""

    @functools.wraps(original)
    def method(self: Any) -> None:
        scheduler = trainer.scheduler_of(self)
        if scheduler is not None:
            scheduler.finish()
        original(self)

    return method


def _of_workers(original: Method) -> Method:
    """`_get_metrics_result_or_logs`, of the last step that ran on a worker."""

    @functools.wraps(original)
    def method(self: Any, logs: Any) -> Any:
        scheduler = trainer.scheduler_of(self)
        return original(self, logs if scheduler is None or scheduler.logs is None else scheduler.logs)

    return method


def _on_host(original: Method) -> Method:
    """`_get_iterator` of an epoch: batches stay on the host until a strategy cuts them."""

    @functools.wraps(original)
    def method(self: Any) -> Iterator[Any]:
        strategy = contexts.current().strategy
        if strategy.is_default:
            return original(self)
        if workers.several(strategy):
            return workers.in_one_order(self.data_adapter, strategy)
        return self.data_adapter.get_jax_iterator()

    return method
