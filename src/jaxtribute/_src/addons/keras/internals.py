"""All that the library knows of Keras's insides: where things lie in `keras.src`, and what private fields say.

Other files reach Keras's internals through this one alone. `tests/addons/keras/test_internals.py` states each
fact, so that a release of Keras that changes one fails there. Two trainers are known: that of Keras 3.15, which calls
the compiled step once for each batch, and its successor, which scans over batches stacked in one.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import collections
import inspect
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

import keras
import numpy as np
from keras.src import activations
from keras.src import backend as backend
from keras.src.backend.common import global_state
from keras.src.backend.common.dtypes import PYTHON_DTYPES_MAP
from keras.src.backend.common.masking import get_keras_mask as get_keras_mask
from keras.src.backend.common.stateless_scope import get_stateless_scope as get_stateless_scope
from keras.src.backend.common.stateless_scope import in_stateless_scope as in_stateless_scope
from keras.src.backend.config import is_nnx_enabled as is_nnx_enabled
from keras.src.backend.jax import trainer
from keras.src.legacy.saving import legacy_h5_format as legacy_h5_format
from keras.src.losses import loss as losses
from keras.src.losses import losses as losses_of_keras
from keras.src.metrics import reduction_metrics
from keras.src.models.functional import Functional as Functional
from keras.src.saving import saving_lib as saving_lib
from keras.src.saving.keras_saveable import KerasSaveable as KerasSaveable
from keras.src.trainers.data_adapters import is_grain_dataset as is_grain_dataset
from keras.src.trainers.data_adapters import is_tf_dataset, is_torch_dataloader
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter as DataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import (
    class_weight_to_sample_weights as class_weight_to_sample_weights,
)
from keras.src.utils import backend_utils
from keras.src.utils import file_utils as file_utils
from keras.src.utils.python_utils import is_default as is_default
from keras.src.utils.tracking import TrackedDict, TrackedList, TrackedOrderedDict, TrackedSet

from jaxtribute.extending import JaxprEqn, Programs
from jaxtribute.typing import Foreign, Nest

KerasModel: TypeAlias = Any
"""A Keras model. Keras leaves most of what it gives without types: these names say which object is meant."""
KerasVariable: TypeAlias = Any
"""A Keras variable, mostly a `StrategyVariable`."""
KerasOptimizer: TypeAlias = Any
"""A Keras optimizer."""
JAXTrainer: Any = getattr(trainer, "JAXTrainer", None) or getattr(trainer, "Trainer")  # noqa: B009
"""The class of all models that trains them. The one that scans is called `Trainer`."""
JAXEpochIterator: Any = trainer.JAXEpochIterator
ACTIVATIONS: frozenset[Any] = frozenset(activations.ALL_OBJECTS)
"""The functions that layers take as activations. Those that look beyond an element look along the last axis."""
losses_module: Any = losses
means_module: Any = reduction_metrics
nn: Any = getattr(backend, "ops", backend).nn
"""The backend's functions of neural networks: `backend.nn`, and `backend.ops.nn` beside the trainer that scans."""
LAYERS_OF_TENSORFLOW: tuple[Any, ...] = (
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)
"""Layers that compute by TensorFlow, whatever the backend, and raise an `ImportError` without it."""
tracked_dicts = (TrackedDict, TrackedOrderedDict)
tracked_lists: dict[type[Any], type[Any]] = {TrackedList: list, TrackedSet: set}
"""Containers that tell a layer of what is put in, and what they are besides."""


def untracked(value: Any) -> Any:
    """A container of Keras's, with those in it, as Python's own; anything else as it is."""
    if isinstance(value, dict):
        return {key: untracked(part) for key, part in cast("dict[Any, Any]", value).items()}
    if type(value) in (list, tuple, set, *tracked_lists):
        return tracked_lists.get(type(value), type(value))(map(untracked, value))
    return value


_NUMBERS = "object_name_uids"
Namespace: Any = backend_utils.DynamicBackend
"""The backend as layers hold it that prepare data."""


def namespace_of(found: Foreign) -> Any:
    """Such a namespace, made again by its class of the backend's name."""
    return Namespace, (found._backend,)


def take_string_dtype() -> None:
    """Lets Keras know NumPy's dtype of strings of any length, which stands for `tf.string` in `compat.tf`."""
    known: dict[Any, str] = PYTHON_DTYPES_MAP
    known[np.dtype(object)] = "string"


def take_host_values(layer: Foreign) -> None:
    """Lets a layer be called with anything, and with values that are not brought to a device before."""
    layer._convert_input_args = False
    layer._allow_non_tensor_positional_args = True
    layer.supports_jit = False


def output_spec(function: Callable[..., Any], *args: Nest, **kwargs: Nest) -> Any:
    """Shapes and dtypes of a function's results, for symbolic tensors among its arguments."""
    return backend.compute_output_spec(function, *args, **kwargs)


def owner(cls: type[Any], name: str) -> type[Any] | None:
    """The class, of `cls` and those above, that defines an attribute; None if none does."""
    return next((one for one in cls.__mro__ if name in vars(one)), None)


# ---------------------------------------------------------------------------------------------------------- variables


def made_by_optimizer() -> bool:
    """True if the variable that is being made is an optimizer's."""
    return _maker() is not None


def owner_of_slot(name: str, shape: tuple[int, ...]) -> KerasVariable | None:
    """Finds the variable whose slot is being made; None if that is none of an optimizer's, or belongs to no variable.

    Keras names a slot by the path of its variable, with underscores, and what it is for behind that.
    """
    variables: list[KerasVariable] = getattr(_maker(), "_trainable_variables", None) or []
    found = [v for v in variables if tuple(v.shape) == shape and name.startswith(v.path.replace("/", "_") + "_")]
    # The longest path: that of one variable may be the beginning of another one's.
    return max(found, key=lambda variable: len(variable.path), default=None)


def _maker() -> Any:
    """The optimizer that makes variables now."""
    scopes = global_state.get_global_attribute("name_scope_stack") or [None]
    caller = getattr(scopes[-1], "caller", None)
    return caller if isinstance(caller, keras.optimizers.Optimizer) else None


def is_lost(variable: KerasVariable) -> bool:
    """True if what is assigned now goes to a scope without state that does not know the variable."""
    scope = get_stateless_scope()
    return scope is not None and scope.get_current_value(variable) is None


SENT = "_jaxtribute_sent"
"""The attribute of a variable that tells if workers have copies of it."""


def set_path(variable: KerasVariable, path: str) -> None:
    """Gives a variable the name that it has behind those of its layers."""
    variable._path = path


# ------------------------------------------------------------------------------------------------------------- models


def loss_tracker(model: KerasModel) -> Any:
    """The metric of a compiled model's loss; None before `compile`."""
    return getattr(model, "_loss_tracker", None)


def has_own_step(model: KerasModel, kind: str) -> bool:
    """True if a model's class replaces one of Keras's steps.

    Args:
      model: the model.
      kind: `"train"`, `"test"` or `"predict"`.
    """
    # Of the class: Keras itself sets no `train_step` on a model.
    return getattr(type(model), f"{kind}_step") is not getattr(JAXTrainer, f"{kind}_step")


def takes_data_alone(model: KerasModel, kind: str) -> bool:
    """True if a model's class has a step in TensorFlow's form, `train_step(self, data)`: on JAX Keras passes a state.

    Args:
      model: the model.
      kind: `"train"`, `"test"` or `"predict"`.
    """
    step = getattr(type(model), f"{kind}_step")
    if step is getattr(JAXTrainer, f"{kind}_step"):
        return False
    given = list(inspect.signature(step).parameters.values())
    return len(given) == 2 and given[1].kind in (given[1].POSITIONAL_ONLY, given[1].POSITIONAL_OR_KEYWORD)


def has_call(model: KerasModel) -> bool:
    """True if a model says what it computes; one of a class whose `train_step` alone computes need not."""
    return type(model).call is not keras.Model.call


def is_unbuilt(model: KerasModel) -> bool:
    """True if Keras must see a batch's shapes before a model can run, or its losses and metrics."""
    for part in (*model._flatten_layers(), model._compile_metrics, model._compile_loss):
        if part is not None and not part.built:
            return True
    return False


def metrics_of(model: KerasModel) -> list[Any]:
    """A model's metrics, those of `compile` one by one."""
    found: list[Any] = []
    for metric in model.metrics:
        found.extend(getattr(metric, "metrics", None) or [metric])
    return found


def is_keras(value: Foreign) -> bool:
    """True if a class or function is Keras's own."""
    return (getattr(value, "__module__", None) or "").startswith("keras.")


def makes_logs(model: KerasModel, kind: str) -> bool:
    """True if code of the user's makes the logs of a model's step: the step, or what Keras's own asks for them.

    Args:
      model: the model.
      kind: `"train"` or `"test"`.
    """
    return has_own_step(model, kind) or not (is_keras(model.compute_metrics) and is_keras(model.get_metrics_result))


def is_plain(model: KerasModel) -> bool:
    """True if no code of the user's runs in a model's steps: model, layers, loss and metrics are Keras's own."""
    parts = [*model._flatten_layers(), *metrics_of(model)]
    if not all(is_keras(type(part)) and not isinstance(part, keras.layers.Lambda) for part in parts):
        return False
    # A model that is not compiled has no loss. One given by name is Keras's own.
    losses = [loss for loss in keras.tree.flatten(getattr(model, "loss", None)) if not isinstance(loss, str)]
    functions = [getattr(part, "_fn", None) for part in parts]
    functions += [getattr(loss, "fn", None) if is_keras(type(loss)) else loss for loss in losses]
    # Operations on a functional model's tensors are no layers, and are what the user says they are.
    if not all(isinstance(one, keras.Layer) for one in getattr(model, "operations", ())):
        return False
    return all(function is None or is_keras(function) for function in functions)


_METHODS = frozenset(
    "train_step test_step predict_step compute_loss compute_metrics call __call__ update_state result".split()
)


def parts_of(model: KerasModel) -> list[Any]:
    """A model and its layers, those within others too."""
    return list(model._flatten_layers())


def own_variables(part: Foreign, *, kept: bool) -> list[Any]:
    """The weights of a layer without those of layers in it, and if `kept` also what else it keeps."""
    return [*part._trainable_variables, *(part._non_trainable_variables if kept else ())]


def has_instead(part: Foreign) -> bool:
    """True if an object has methods of its own in place of those of its class, or losses that were added to it."""
    return not _METHODS.isdisjoint(vars(part)) or bool(getattr(part, "_losses", None))


def calls_in(model: KerasModel) -> list[tuple[Any, list[Any], dict[str, Any]]] | None:
    """The calls that a functional or sequential model consists of; None if there is no such list.

    Each has an operation, all of its arguments, flat, and those that are given by name.
    """
    graph = getattr(model, "_functional", None) if type(model) is keras.Sequential else model
    if type(graph) is not Functional:
        return None
    nodes = [node for nodes in graph._nodes_by_depth.values() for node in nodes if not node.is_input]
    return [(node.operation, node.arguments._flat_arguments, node.arguments.kwargs) for node in nodes]


def losses_of(model: KerasModel) -> list[Any]:
    """The losses of a compiled model, one for each output that has one; [None] if Keras has not made them yet."""
    whole = model._compile_loss
    if whole is None:
        return []
    return [None] if whole._flat_losses is None else [one.loss for one in whole._flat_losses]


def function_of_loss(loss: Foreign) -> tuple[Any, dict[str, Any]]:
    """The function that one of Keras's own losses is of, and its arguments; None for any other loss."""
    known = type(loss).__module__ == losses_of_keras.__name__ and not has_instead(loss)
    return (loss.fn, loss._fn_kwargs) if known else (None, {})


def function_of_metric(metric: Foreign) -> tuple[Any, dict[str, Any]]:
    """The function that one of Keras's own metrics takes the mean of, and its arguments; None for any other one."""
    known = is_keras(type(metric)) and isinstance(metric, reduction_metrics.MeanMetricWrapper)
    known = known and not has_instead(metric)
    return (metric._fn, metric._fn_kwargs) if known else (None, {})


_ALONG_AXES = (
    "/keras/src/activations/activations.py",
    "/keras/src/losses/",
    "/keras/src/layers/activations/softmax.py",
    "/keras/src/layers/merging/concatenate.py",
    "/keras/src/layers/merging/dot.py",
    "/keras/src/layers/normalization/layer_normalization.py",
    "/keras/src/layers/normalization/unit_normalization.py",
    "/keras/src/layers/preprocessing/image_preprocessing/cut_mix.py",
    "/keras/src/layers/preprocessing/image_preprocessing/equalization.py",
    "/keras/src/layers/preprocessing/image_preprocessing/mix_up.py",
)
"""Files of Keras whose operations use several rows if they are told to, or by what they are."""


def line_of_user(eqn: JaxprEqn) -> str | None:
    """The user's line that an operation comes from, as file:line; None for one of Keras's own layers and metrics.

    Functions of `keras.ops` do what the user calls them for, and so do those that a functional model is made of.
    Losses, and layers that work along an axis, do it along the rows only where the user says so; few layers always do.
    """
    inner = (f"/keras/src/{folder}/" for folder in ("ops", "random", "backend", "utils"))
    line = Programs.user_line(eqn, "/jaxtribute/", *inner)
    if line is None or "/keras/src/" not in line:
        return line or "?"
    frames = list(Programs.user_frames(eqn))
    if "/keras/src/models/functional.py" in line:
        names = (frame.function_name.partition(".")[0] for frame in frames if "/keras/src/ops/" in frame.file_name)
        return f"{next(names, 'an operation')} of a functional model"
    # Whether labels are -1 and 1 it asks of all of them, and they are the same everywhere.
    asks = any(frame.function_name.startswith("convert_binary_labels") for frame in frames)
    return line if not asks and any(part in line for part in _ALONG_AXES) else None


def updated_metrics(
    model: KerasModel, metrics: Sequence[Any], loss: Nest, *batch: Nest
) -> tuple[dict[str, Any], list[Any]]:
    """A model's logs and its metrics' new values, after a batch `(x, y, y_pred, sample_weight)`."""
    return model._update_metrics_variables(metrics, loss, *batch)


# --------------------------------------------------------------------------------------------------------- optimizers


def clipped(optimizer: KerasOptimizer, grads: Sequence[Any]) -> list[Any]:
    """Gradients as an optimizer clips them."""
    return optimizer._clip_gradients(grads)


def learning_rate(optimizer: KerasOptimizer) -> Any:
    """The learning rate as an optimizer was given it: a variable, or a schedule."""
    return getattr(optimizer, "_learning_rate", None)


def updated_by(optimizer: KerasOptimizer) -> list[Any]:
    """The variables that a built optimizer updates."""
    # An optimizer that scales losses leaves its variables to the one inside it.
    return list(getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables)


def decays(optimizer: KerasOptimizer, variable: KerasVariable) -> bool:
    """True if an optimizer's weight decay is for a variable."""
    return getattr(optimizer, "_use_weight_decay", lambda _: True)(variable)


def exclude_from_decay(optimizer: KerasOptimizer, variables: Sequence[Any]) -> None:
    """Keeps an optimizer's weight decay from variables."""
    optimizer._exclude_from_weight_decay = {optimizer._var_key(variable) for variable in variables}


# --------------------------------------------------------------------------------------------------- data, callbacks


def is_dataset(x: object) -> bool:
    """True for datasets of Grain and of TensorFlow, and loaders of PyTorch."""
    return is_grain_dataset(x) or is_tf_dataset(x) or is_torch_dataloader(x)


def is_of_tensorflow(x: object) -> bool:
    """True for a dataset of `jaxtribute.compat.tf`."""
    # Not imported for the question: whoever has such a dataset has imported the module.
    module = sys.modules.get("jaxtribute._src.addons.compat.tf.dataset")
    return module is not None and isinstance(x, module.Dataset)


def model_of(callback: Foreign) -> KerasModel:
    """The model of a callback, or of a list of them. To ask for `model` would bring the model's state up to date."""
    return callback._model


def listen(callbacks: Sequence[Any], hook: Callable[..., Any]) -> bool:
    """True if any callback does something at the end of a batch, of which a list's private method `hook` tells all."""
    name = hook.__name__.removeprefix("_")
    # Keras's own `on_train_batch_end` calls `on_batch_end`.
    names = {name, "on_batch_end"} if name == "on_train_batch_end" else {name}
    return any(not is_default(getattr(callback, name)) for callback in callbacks for name in names)


def first_batch(epoch: Foreign) -> Any:
    """The first batch of an epoch, as Keras looks at it to build a model."""
    _, _, batches = next(iter(epoch))
    return batches[0] if isinstance(batches, (list, tuple)) else next(batches)


def has_arrays(adapter: Foreign) -> bool:
    """True if a data adapter cuts its batches from whole arrays, to which nobody writes meanwhile."""
    return isinstance(adapter, ArrayDataAdapter)


def batch_sizes(adapter: Foreign) -> tuple[int | None, bool]:
    """The rows of most of an adapter's batches, None if not known, and whether fewer are sure to be in the last one."""
    try:
        size, partial = adapter.batch_size, bool(adapter.has_partial_batch)
    except NotImplementedError:  # some adapters do not say
        return None, False
    return (None, False) if adapter.num_batches == 1 else (size, partial)


def shuffles(adapter: Foreign) -> bool:
    """True if a data adapter gives another order each epoch."""
    return bool(getattr(adapter, "_shuffle", False) or getattr(adapter, "shuffle", False))


def read_by_threads(adapter: Foreign) -> Any:
    """The `PyDataset` that other threads read, if an adapter has such a one."""
    return adapter.py_dataset if getattr(adapter, "enqueuer", None) is not None else None


@contextmanager
def own_names() -> Generator[None]:
    """Numbers the names that Keras gives to new objects as if none were made within: other workers make none."""
    known: Any = global_state.get_global_attribute(_NUMBERS)
    before: dict[str, int] = dict(known or {})
    try:
        yield
    finally:
        global_state.set_global_attribute(_NUMBERS, collections.defaultdict(int, before))


def backup_file(backup: Foreign) -> Path:
    """The file that a `BackupAndRestore` writes last, with the epoch and the batch to go on with."""
    return Path(backup._training_metadata_path)
