"""The places where Keras asks about strategies. Outside every scope, and for plain models, all is as it was."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import keras

from jaxtribute._src.addons.keras import adapting, backups, checks, internals, multi_worker, results, sending, trainer

# Not used here: Keras must know the operation in it when it loads a model that another process has saved.
from jaxtribute._src.addons.keras import functions as functions
from jaxtribute._src.addons.keras.added_losses import keep_losses_apart
from jaxtribute._src.addons.keras.additivity import checked_updates
from jaxtribute._src.addons.keras.apart import apart_of
from jaxtribute._src.addons.keras.building import as_shapes, shapes_of_a_replica, without_noting
from jaxtribute._src.addons.keras.custom_loops import given_gradients, initialized_now
from jaxtribute._src.addons.keras.data import DistributedAdapter, adapted, weighted
from jaxtribute._src.addons.keras.internals import JAXEpochIterator, JAXTrainer, KerasModel, is_nnx_enabled
from jaxtribute._src.addons.keras.own_losses import addition_of_replica, loss_of_replica, undivided
from jaxtribute._src.addons.keras.own_updates import updated
from jaxtribute._src.addons.keras.padding import Batches
from jaxtribute._src.addons.keras.server_loops import applied
from jaxtribute._src.addons.keras.share import (
    synchronizable,
    whole_batch_gradients,
    whole_batch_masked_moments,
    whole_batch_moments,
)
from jaxtribute._src.addons.keras.stateful import values_of_part, weighted_loss
from jaxtribute._src.addons.keras.strings import (
    check_batch,
    check_strings,
    host_inputs,
    made_without_tensorflow,
    unchecked,
)
from jaxtribute._src.addons.keras.variables import PlainValue, by_path, joined, new_variable, on_servers, rebuilt
from jaxtribute.errors import ArgumentError, ConfigError
from jaxtribute.extending import Context, copied
from jaxtribute.typing import Foreign, Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute import Strategy

Method = Callable[..., Any]


@dataclass(frozen=True)
class Patch:
    """One or more functions of Keras in whose place another is called.

    Attributes:
      where: the class or module; of a class, the one above that has the function.
      names: the functions. `a or b` is `a` where Keras has it: the two trainers differ in names.
      instead: what is called: `instead(original, *args)`, or `instead(original, strategy, model, *args)`.
      why: the reason.
      in_strategy: True for methods of models whose `instead` is for those of a strategy only.
    """

    where: Any
    names: tuple[str, ...]
    instead: Method
    why: str
    in_strategy: bool = False

    def targets(self) -> Iterator[tuple[Any, str]]:
        """The class or module, and the name, of each function.

        Raises:
          ConfigError: this release of Keras has no such function.
        """
        for names in self.names:
            found = next(filter(None, (self._target(name) for name in names.split(" or "))), None)
            if found is None:
                raise ConfigError(
                    f"Keras {keras.__version__} has no {names} in {self.where.__name__}, where jaxtribute looks for it "
                    f"({self.why}). HINT: install another release of Keras; this one is not known yet."
                )
            yield found

    def apply(self) -> None:
        """Replaces the functions."""
        for where, name in list(self.targets()):
            method = _wrapped(getattr(where, name), _asking(self.instead) if self.in_strategy else self.instead)
            setattr(where, name, staticmethod(method) if name == "__new__" else method)

    def _target(self, name: str) -> tuple[Any, str] | None:
        if not isinstance(self.where, type):
            return (self.where, name) if hasattr(self.where, name) else None
        # Where it is defined, so that all classes below get it.
        where = internals.owner(self.where, name)
        return None if where is None else (self.where if where is object else where, name)


def patch() -> None:
    """Teaches Keras's JAX backend about strategies.

    Raises:
      ConfigError: Keras keeps its variables in Flax NNX, or is of a release that is not known.
    """
    if is_nnx_enabled():
        raise ConfigError(
            "Keras runs with KERAS_NNX_ENABLED=true, which keeps its variables in Flax NNX and out of strategies' "
            "reach. HINT: unset KERAS_NNX_ENABLED."
        )
    for row in PATCHES:
        list(row.targets())  # all are there, or none is replaced
    for row in PATCHES:
        row.apply()
    for kind in sending.KINDS:
        setattr(kind, "__jd_sender__", sending.Sender())  # noqa: B010
    internals.take_string_dtype()
    keep_losses_apart()
    results.known_give_values()
    setattr(keras.Variable, "_value", PlainValue())  # noqa: B010 (an attribute that Keras sets on each object)
    setattr(keras.Variable, "__jd_variable__", property(joined))  # noqa: B010
    setattr(keras.Layer, "__jd_parameters__", property(by_path))  # noqa: B010


def _wrapped(original: Method, instead: Method) -> Method:
    @functools.wraps(original)
    def method(*args: Leaf, **kwargs: Leaf) -> Any:
        return instead(original, *args, **kwargs)

    setattr(method, "__signature__", inspect.signature(original))  # noqa: B010 (Keras reads it)
    return method


def _asking(instead: Method) -> Method:
    """Calls `instead` for models of a strategy alone."""

    def method(original: Method, model: KerasModel, *args: Leaf, **kwargs: Leaf) -> Any:
        strategy = trainer.strategy_of(model)
        if strategy is not None:
            return instead(original, strategy, model, *args, **kwargs)
        return original(model, *args, **kwargs)

    return method


# ------------------------------------------------------------------------------------------------------------- models


def _remembered(original: Method, model: KerasModel, *args: Leaf, **kwargs: Leaf) -> None:
    original(model, *args, **kwargs)
    strategy = Context.current().strategy
    if not strategy.is_default:
        trainer.remember(model, strategy)


def _in_scope(original: Method, strategy: Strategy, model: KerasModel, *args: Leaf, **kwargs: Leaf) -> Any:
    with strategy.scope():
        return original(model, *args, **kwargs)


def _called(original: Method, model: KerasModel, *args: Leaf, **kwargs: Leaf) -> Any:
    """`fit` and its like."""
    strategy = trainer.strategy_of(model)
    if strategy is None:
        if Context.current().strategy.is_default or not getattr(model, "built", False):
            return original(model, *args, **kwargs)
        checks.check_plain(original, model, Context.current().strategy)
        with Context.entered(Context.outside()):  # a plain model's data are its own, too
            return original(model, *args, **kwargs)
    # Before anything runs: what a strategy refuses should not fail in the middle of an epoch.
    checks.check_call(original, model, strategy, args, kwargs)
    if original.__name__.endswith("_on_batch"):
        check_strings(**inspect.signature(original).bind_partial(model, *args, **kwargs).arguments)
    if original.__name__ in _SHOWN and not multi_worker.is_first(strategy):
        args, kwargs = multi_worker.silenced(original, model, args, kwargs)
    apart = apart_of(strategy)
    if apart is not None and original.__name__ in ("evaluate", "predict"):
        apart.settle()
    if original.__name__ not in _SHOWN:
        return _in_scope(original, strategy, model, *args, **kwargs)
    with multi_worker.running(strategy):
        return _in_scope(original, strategy, model, *args, **kwargs)


def _written_once(original: Method, strategy: Strategy, model: KerasModel, *args: Leaf, **kwargs: Leaf) -> Any:
    bound = inspect.signature(original).bind(model, *args, **kwargs)

    def write(path: Leaf) -> Any:
        bound.arguments["filepath"] = path
        # Outside the scope other workers need not take part in what Keras makes for it.
        with Context.entered(Context.outside()):
            return original(*bound.args, **bound.kwargs)

    return multi_worker.once(strategy, model, bound.arguments["filepath"], write)


def _made(
    name: str,
    make: Callable[[Any, Strategy], trainer.Function],
    _: Method,
    strategy: Strategy,
    model: KerasModel,
    force: bool = False,
) -> Any:
    # Keras keeps the function on the model, and `compile` takes it away.
    if force or getattr(model, name) is None:
        setattr(model, name, make(model, strategy))
    return getattr(model, name)


def _built_on_sample(
    original: Method, strategy: Strategy, model: KerasModel, iterator: Nest = None, data_batch: Leaf = None
) -> None:
    # A model that only its own steps compute with has nothing to call: the models in it are built already.
    if not internals.has_call(model) and internals.takes_data_alone(model, "train"):
        return
    if not internals.is_unbuilt(model):
        original(model)
        return
    # Where workers make the batches, shapes come from the coordinator's own dataset.
    sample = getattr(getattr(iterator, "data_adapter", None), "like_a_batch", None)
    if sample is not None:
        data_batch = next(sample())
    elif data_batch is None:
        data_batch = internals.first_batch(iterator)
    check_batch(data_batch)
    # Losses may meet the other replicas, as they do in a step.
    with nullcontext() if on_servers(strategy) else shapes_of_a_replica(strategy):
        original(model, data_batch=as_shapes(data_batch))


def _no_state(_: Method, __: Strategy, ___: Foreign, **kwargs: bool) -> Any:
    # Keras asks for some of its four lists of values; each is empty.
    return tuple(() for name in kwargs if name != "purge_model_variables" and kwargs[name])


def _finished(original: Method, _: Strategy, model: KerasModel) -> None:
    scheduler = trainer.scheduler_of(model)
    if scheduler is not None:
        # A callback or `get_weights` reads variables now, which steps that still run on workers would change.
        scheduler.finish()
    original(model)


def _of_all(original: Method, strategy: Strategy, model: KerasModel, logs: Leaf) -> Any:
    apart = apart_of(strategy)
    if apart is not None:  # at the end of an epoch or an evaluation: metrics are of all islands' rows from here on
        apart.meet()
    scheduler = trainer.scheduler_of(model)
    return original(model, logs if scheduler is None or scheduler.logs is None else scheduler.logs)


def _heard(original: Method, callbacks: Foreign, hook: Method, *args: Leaf) -> None:
    """Hands a batch's end to another thread, if any callback of a strategy's model wants to hear of it.

    Keras has the thread turn logs into numbers first: it waits for each batch, and takes the interpreter meanwhile.
    """
    if trainer.strategy_of(internals.model_of(callbacks)) is None or internals.listen(callbacks.callbacks, hook):
        original(callbacks, hook, *args)


# --------------------------------------------------------------------------------------------------------------- data


def _adapting(original: Method, epoch: Foreign, x: Nest, *args: Leaf, **kwargs: Leaf) -> None:
    strategy = Context.current().strategy
    check_strings(x=x, **{**dict(zip(("y", "sample_weight"), args, strict=False)), **kwargs})
    # Keras weighs the examples of arrays alone.
    of_tensorflow = internals.is_of_tensorflow(x)
    if kwargs.get("class_weight") is not None and (of_tensorflow or internals.is_grain_dataset(x)):
        x = weighted(x, kwargs.pop("class_weight"))
    if of_tensorflow:
        # Keras warns of Grain, which the program does not know of: nobody has asked for `shuffle`, or said a length.
        kwargs["shuffle"], epoch.__dict__[_OF_TENSORFLOW] = False, True
        if strategy.is_default or not multi_worker.several(strategy):
            x = x.to_grain()
    if not strategy.is_default:
        given, x = x, adapted(x, strategy)
        checks.check_input(given, x, args, kwargs)
        if isinstance(x, DistributedAdapter) and kwargs.get("class_weight") is not None:
            raise ArgumentError(
                f"class_weight={kwargs['class_weight']!r} with a dataset that is distributed already. HINT: let "
                "the dataset give weights as the third part of its elements: (x, y, sample_weight)."
            )
    try:
        original(epoch, x, *args, **kwargs)
    except (TypeError, ValueError):
        data: Any = x
        if internals.is_grain_dataset(data):  # whose first batch Keras looks at
            check_batch(next(iter(data)))
        raise


def _expected(original: Method, epoch: Foreign) -> None:
    # Keras warns of data that end before the steps do; here nobody has said how many there are.
    unsized = isinstance(epoch.data_adapter, DistributedAdapter) or _OF_TENSORFLOW in epoch.__dict__
    if epoch.steps_per_epoch or not unsized:
        original(epoch)


def _without_tables(original: Method, scope: Foreign, state_mapping: Foreign = None, *args: Any, **kwargs: Any) -> None:
    original(scope, [pair for pair in state_mapping or () if pair[1] is not None], *args, **kwargs)


def _on_host(original: Method, epoch: Foreign) -> Iterator[Any]:
    strategy = Context.current().strategy
    if strategy.is_default:
        return original(epoch)
    if multi_worker.several(strategy):
        iterator = multi_worker.in_one_order(epoch.data_adapter, strategy)
    else:
        iterator = epoch.data_adapter.get_jax_iterator()
    # A device may read a batch's memory when its source has long gone on, and written the next one there.
    iterator = iterator if internals.has_arrays(epoch.data_adapter) else map(copied, iterator)
    return Batches(iterator, epoch.data_adapter)


# ---------------------------------------------------------------------------------------------------------- the table

_OF_TENSORFLOW = "_jaxtribute_dataset"
"""The attribute of an epoch that reads a dataset of `jaxtribute.compat.tf`."""
_SHOWN = ("fit", "evaluate", "predict")
_WRITTEN = "of several workers the first writes, and the others wait"
_GRADIENTS = "gradients are added up before they are applied"
_OWN_GRADIENTS = "the same in a replica function of one's own"
_ADAPTED = "Keras reads TensorFlow's datasets only"
_CALLED = (*_SHOWN, "train_on_batch", "test_on_batch", "predict_on_batch")

# One row for each place: what is replaced, by what, and why. Anything that Keras does is changed here or not at all, so
# that a new release of Keras is tried against this table, before the first function is replaced.
PATCHES = (
    Patch(keras.Variable, ("__new__",), new_variable, "a strategy stores the variables that are made in its scope"),
    Patch(
        keras.Variable,
        ("_initialize_with_initializer",),
        initialized_now,
        "a model that is built in a traced function has values, not tracers",
    ),
    Patch(keras.metrics.Metric, ("__init__",), results.made, "a metric's result is a value, and no variable"),
    Patch(JAXTrainer, ("__init__",), _remembered, "a model knows in whose scope it was made"),
    Patch(JAXTrainer, ("compile",), _in_scope, "metrics and optimizer are the strategy's", in_strategy=True),
    Patch(JAXTrainer, _CALLED, _called, "the model's strategy is in force, whoever calls"),
    Patch(
        internals.saving_lib,
        ("save_model", "save_weights_only"),
        _written_once,
        _WRITTEN,
        in_strategy=True,
    ),
    Patch(internals.legacy_h5_format, ("save_model_to_hdf5",), _written_once, _WRITTEN, in_strategy=True),
    Patch(internals.file_utils, ("makedirs",), multi_worker.folder, "workers make one folder at the same time"),
    Patch(keras.Model, ("export",), _written_once, _WRITTEN, in_strategy=True),
    Patch(
        keras.callbacks.TensorBoard, ("_log_weights",), multi_worker.histograms, "all workers read what is in slices"
    ),
    Patch(keras.callbacks.BackupAndRestore, ("_save_model",), backups.backed_up, _WRITTEN),
    Patch(keras.callbacks.BackupAndRestore, ("on_train_end",), backups.deleted, _WRITTEN),
    Patch(keras.callbacks.BackupAndRestore, ("on_train_begin",), backups.restored, "workers begin alike"),
    *(
        Patch(
            JAXTrainer,
            (f"make_{kind}_function",),
            partial(_made, f"{kind}_function", make),
            "a step runs on all replicas, or on workers",
            in_strategy=True,
        )
        for kind, make in trainer.MAKERS.items()
    ),
    Patch(
        JAXTrainer,
        ("_maybe_symbolic_build or _symbolic_build",),
        _built_on_sample,
        "a model is built for batches that only workers make",
        in_strategy=True,
    ),
    Patch(
        JAXTrainer,
        ("_get_jax_state",),
        _no_state,
        "between steps a strategy's variables hold the values themselves, and nothing is passed on",
        in_strategy=True,
    ),
    Patch(
        JAXTrainer, ("_update_metrics_variables",), checked_updates, "replicas' metrics are added up, where they can be"
    ),
    Patch(
        JAXTrainer,
        ("state_sync or jax_state_sync",),
        _finished,
        "who looks at the model, such as a callback, waits for what runs on workers",
        in_strategy=True,
    ),
    Patch(
        JAXTrainer,
        ("_get_metrics_result_or_logs",),
        _of_all,
        "logs are of the last step that ran on a worker, or of all islands",
        in_strategy=True,
    ),
    Patch(
        keras.callbacks.CallbackList,
        ("_async_dispatch",),
        _heard,
        "no thread is asked to do what no callback wants",
    ),
    Patch(JAXEpochIterator, ("__init__",), _adapting, "distributed datasets are data, too"),
    Patch(JAXEpochIterator, ("_get_iterator",), _on_host, "batches stay on the host, one by one, until they are cut"),
    Patch(JAXEpochIterator, ("_interrupted_warning",), _expected, "a dataset of unknown length may end"),
    Patch(internals.backend, ("compute_output_spec",), without_noting, "what it reads is not kept"),
    Patch(internals.losses_module, ("reduce_weighted_values",), loss_of_replica, "a loss is that of the whole batch"),
    Patch(internals.losses_module, ("unscale_loss_for_distribution",), undivided, "metrics show whole losses"),
    Patch(internals.means_module, ("reduce_to_samplewise_values",), values_of_part, "means count rows"),
    Patch(JAXTrainer, ("compute_loss",), weighted_loss, "its gradients are those of a replica's share of the rows"),
    Patch(JAXTrainer, ("_aggregate_additional_loss",), addition_of_replica, "so are losses of layers that are sums"),
    Patch(internals.nn, ("moments",), whole_batch_moments, "batch statistics may be those of the whole batch"),
    Patch(
        keras.layers.BatchNormalization,
        ("_moments",),
        whole_batch_masked_moments,
        "so may those of what a mask leaves, which Keras computes apart",
    ),
    Patch(keras.StatelessScope, ("__init__",), _without_tables, "a step has no value of a table as a whole"),
    Patch(
        keras.layers.BatchNormalization,
        ("__init__",),
        synchronizable,
        "it takes synchronized=True, which Keras has for TensorFlow alone",
    ),
    Patch(
        keras.layers.Layer,
        ("_track_variable", "_untrack_variable"),
        rebuilt,
        "functions that were traced with a layer see that it has other variables",
    ),
    Patch(
        internals.Functional, ("_assert_input_compatibility",), unchecked, "a model of strings takes single examples"
    ),
    Patch(internals.Functional, ("_standardize_inputs",), host_inputs, "JAX has no strings: they stay on the host"),
    *(
        Patch(layer, ("__init__",), made_without_tensorflow, "a scope says what to use where TensorFlow is missing")
        for layer in internals.LAYERS_OF_TENSORFLOW
    ),
    Patch(keras.layers.Normalization, ("adapt",), adapting.adapt_normalization, _ADAPTED),
    Patch(keras.layers.Discretization, ("adapt",), adapting.adapt_discretization, _ADAPTED),
    Patch(keras.optimizers.Optimizer, ("stateless_apply",), whole_batch_gradients, _GRADIENTS),
    Patch(keras.optimizers.LossScaleOptimizer, ("stateless_apply",), whole_batch_gradients, _GRADIENTS),
    Patch(keras.optimizers.Optimizer, ("apply",), applied, _OWN_GRADIENTS),
    Patch(keras.optimizers.Optimizer, ("_backend_apply_gradients",), updated, "variables of strategies' own, too"),
    Patch(keras.optimizers.Optimizer, ("apply_gradients",), given_gradients, _OWN_GRADIENTS),
    Patch(keras.optimizers.LossScaleOptimizer, ("apply",), applied, _OWN_GRADIENTS),
)
"""All that is changed in Keras."""
