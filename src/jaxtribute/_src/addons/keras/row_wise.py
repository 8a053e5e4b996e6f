"""True if a model computes each row of a batch by itself, whatever other rows are there: then rows may be added.

Only what is listed is known to. A layer of the user's, or one that is new in Keras, is not.
"""

from __future__ import annotations

from typing import Any, Literal

import keras

from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute._src.addons.keras.tables import has_tables
from jaxtribute.typing import Foreign, Leaf

Kind = Literal["train", "test", "predict"]
"""The function of a model: that of `fit`, `evaluate` or `predict`."""


def _named(module: Any, names: str) -> frozenset[Any]:
    """The members of a module that this release of Keras has."""
    return frozenset(getattr(module, name) for name in names.split() if hasattr(module, name))


_MERGING = _named(keras.layers, "Add Average Maximum Minimum Multiply Subtract")
LAYERS = _MERGING | _named(
    keras.layers,
    "Activation AdditiveAttention AlphaDropout Attention AveragePooling1D AveragePooling2D AveragePooling3D "
    "Bidirectional Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose Cropping1D "
    "Cropping2D Cropping3D Dense DepthwiseConv1D DepthwiseConv2D Dot Dropout ELU EinsumDense Embedding Flatten GRU "
    "GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D "
    "GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention Identity "
    "InputLayer LSTM LSTMCell LayerNormalization LeakyReLU MaxPooling1D MaxPooling2D MaxPooling3D MultiHeadAttention "
    "Normalization PReLU Permute RMSNormalization RNN ReLU RepeatVector Rescaling Reshape SeparableConv1D "
    "SeparableConv2D SimpleRNN SimpleRNNCell Softmax SpatialDropout1D SpatialDropout2D SpatialDropout3D "
    "StackedRNNCells TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D "
    "ZeroPadding2D ZeroPadding3D",
)
"""Layers of which each row's output depends on that row alone, in training too."""
COMBINING = _named(keras.layers, "CutMix Equalization MixUp")
"""Layers that combine rows in training by what they are: pairs that are drawn, or counts over the whole batch."""
INFERRING = LAYERS | {keras.layers.BatchNormalization}
"""The same outside of training."""
LOSSES = frozenset(
    "binary_crossentropy binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy "
    "categorical_generalized_cross_entropy categorical_hinge cosine_similarity huber kl_divergence log_cosh "
    "mean_absolute_error mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson "
    "sparse_categorical_crossentropy".split()
)
"""Functions with a value for each row. Hinges look for labels -1 in a whole batch, CTC and others are not listed."""
_PLAIN_LOSSES = LOSSES | {"hinge", "squared_hinge", "ctc"}
"""The same, and those that ask for what must be alike in all rows."""
METRICS = LOSSES | frozenset(
    "accuracy binary_accuracy categorical_accuracy sparse_categorical_accuracy sparse_top_k_categorical_accuracy "
    "top_k_categorical_accuracy".split()
)
"""Functions whose means are metrics."""
_OF_CLASSES = frozenset(
    "categorical_generalized_cross_entropy sparse_categorical_accuracy sparse_categorical_crossentropy "
    "sparse_top_k_categorical_accuracy".split()
)
"""Functions whose labels are numbers of classes, with an axis fewer than outputs."""
_REDUCTIONS = ("sum_over_batch_size", "mean", "sum", "mean_with_sample_weight")
_OPERATIONS = frozenset(
    "Absolute Add Cos Divide Exp Log Maximum Minimum Multiply Negative Sin Sqrt Square Subtract Tanh TrueDivide "
    "Elu Gelu LeakyRelu Relu Relu6 Selu Sigmoid Silu Softplus".split()
)
"""Operations on a functional model's tensors that compute each element by itself."""
_ANY_RANK = _named(keras.layers, "Embedding Reshape Flatten Rescaling Identity RepeatVector InputLayer")
"""Layers that may be given a number for each row."""

_ATTENDING = _named(keras.layers, "AdditiveAttention Attention")
"""Layers that take the rows for what is attended to, if there is nothing else."""


def is_row_wise(model: KerasModel, kind: Kind) -> bool:
    """True if a function of a model is known to compute each row of a batch by itself."""
    if type(model) not in (internals.Functional, keras.Sequential):
        return False
    parts = internals.parts_of(model)
    if not all(is_listed(part, kind) for part in parts):
        return False
    for part in (model, *parts):
        if type(part) in (internals.Functional, keras.Sequential) and not _calls_are_row_wise(part):
            return False
    # Of one number for each row Keras takes the mean over the batch as it does over a row.
    if any(len(output.shape) < 2 for output in model.outputs):
        return False
    return kind == "predict" or _has_listed_losses(model)


def is_plain(model: KerasModel) -> bool:
    """True if no code of the user's runs in a model's steps, and nothing of Keras's own combines rows."""
    if not internals.is_plain(model):
        return False
    for layer in internals.parts_of(model):
        if type(layer) in COMBINING:
            return False
        regularizer = getattr(layer, "activity_regularizer", None)
        if not _axes_within(layer) or (regularizer is not None and not internals.is_keras(type(regularizer))):
            return False
    functions = [internals.function_of_loss(loss) for loss in internals.losses_of(model)]
    return all(
        function is None or (function.__name__ in _PLAIN_LOSSES and arguments.get("axis", -1) == -1)
        for function, arguments in functions
    )


def is_listed(layer: Foreign, kind: Kind) -> bool:
    """True if a layer, wherever it stands, computes each row by itself."""
    if internals.has_instead(layer):
        return False
    if type(layer) in (internals.Functional, keras.Sequential):
        return True
    # A row that is added is a copy: it names rows of tables that are looked up in any case, and has no gradient.
    if type(layer) not in (LAYERS if kind == "train" else INFERRING) and not has_tables(layer):
        return False
    unlike = layer.activity_regularizer, getattr(layer, "noise_shape", None), layer.quantization_mode
    if any(one is not None for one in unlike) or getattr(layer, "stateful", False):
        return False
    if getattr(layer, "mask_zero", False) or getattr(layer, "sparse", False) or getattr(layer, "ragged", False):
        return False
    functions = (getattr(layer, name, None) for name in ("activation", "recurrent_activation"))
    if not all(function is None or function in internals.ACTIVATIONS for function in functions):
        return False
    equation = getattr(layer, "equation", None)
    return _axes_within(layer) and (equation is None or keeps_rows(equation))


def _axes_within(layer: Foreign) -> bool:
    """True if no axis that a layer works along can be that of the rows."""
    attention = layer.get_config()["attention_axes"] if type(layer) is keras.layers.MultiHeadAttention else None
    for given in (getattr(layer, "axis", None), getattr(layer, "axes", None), attention):
        axes = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
        # The last axis is another one, as what has only one is refused.
        if not all(isinstance(axis, int) and (axis > 0 or axis == -1) for axis in axes):
            return False
    return True


def keeps_rows(equation: str) -> bool:
    """True if the first axis of an `EinsumDense` is that of the rows, which nothing is summed over."""
    inputs, _, output = equation.partition("->")
    values, _, kernel = inputs.partition(",")
    first = "..." if values.startswith("...") else values[:1]
    return output.startswith(first) and first not in kernel


def _calls_are_row_wise(model: KerasModel) -> bool:
    calls = internals.calls_in(model)
    return calls is not None and all(_call_is_row_wise(*call) for call in calls)


def _call_is_row_wise(operation: Foreign, arguments: list[Any], named: dict[str, Any]) -> bool:
    """True if a call in a functional model has tensors of rows alone, and does not mix their axes."""
    tensors = [one for one in arguments if isinstance(one, keras.KerasTensor)]
    is_layer = isinstance(operation, keras.Layer)
    least = 1 if type(operation) in _ANY_RANK or has_tables(operation) else 3 if type(operation) in _ATTENDING else 2
    if named.get("training") or named.get("mask") is not None:
        return False
    if not all(len(one.shape) >= least and one.shape[0] is None for one in tensors):
        return False
    ranks = {len(one.shape) for one in tensors}
    rest = [one for one in arguments if not isinstance(one, keras.KerasTensor)]
    if is_layer:
        return (type(operation) not in _MERGING or len(ranks) == 1) and all(map(_is_number, rest))
    if not internals.is_keras(type(operation)) or type(operation).__name__ not in _OPERATIONS:
        return False
    return len(ranks) == 1 and all(_is_number(one) or getattr(one, "ndim", 99) < min(ranks) for one in rest)


def _is_number(value: Leaf) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _has_listed_losses(model: KerasModel) -> bool:
    """True if a compiled model's losses and metrics have a value for each row, and take means or sums of these."""
    for loss in internals.losses_of(model):
        function, arguments = internals.function_of_loss(loss)
        if not _is_function(function, arguments, LOSSES) or loss.reduction not in _REDUCTIONS:
            return False
    for metric in internals.metrics_of(model):
        if internals.has_instead(metric):
            return False
        # Keras lists what holds the metrics of `compile`, too, if there are none.
        if not metric.variables or type(metric) in (keras.metrics.Mean, keras.metrics.RootMeanSquaredError):
            continue
        if not _is_function(*internals.function_of_metric(metric), METRICS):
            return False
    return True


def ranks_of_labels(model: KerasModel) -> list[set[int]]:
    """For each output of a compiled model the numbers of axes of labels that Keras compares with it row by row.

    Labels with fewer axes it may broadcast over the rows.
    """
    losses = (internals.function_of_loss(loss) for loss in internals.losses_of(model))
    metrics = (internals.function_of_metric(metric) for metric in internals.metrics_of(model))
    names = {function.__name__ for function, _ in (*losses, *metrics) if function is not None}
    shapes = [output.shape for output in model.outputs]
    # Where some take numbers of classes and others do not, it is not looked at which belongs to which output.
    return [{len(shape), len(shape) - (names <= _OF_CLASSES or shape[-1] == 1)} for shape in shapes]


def _is_function(function: Foreign, arguments: dict[str, Any], listed: frozenset[str]) -> bool:
    """True if Keras's own function is listed, and does not look along the rows or for what is masked."""
    if function is None or not internals.is_keras(function) or function.__name__ not in listed:
        return False
    return arguments.get("axis", -1) == -1 and arguments.get("ignore_class") is None
