"""A little of `tf.nn`: activations, cross entropies, and losses over replicas."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import nn
from jaxtribute._src.addons.compat.catalog.lookup import explain_absent as _explain_absent
from jaxtribute._src.addons.compat.tf.conversion import TensorLike, as_tensor
from jaxtribute._src.addons.compat.tf.indices import checked
from jaxtribute._src.addons.compat.tf.symbolic import allow_in_models as _allow_in_models
from jaxtribute.compat.tf.math import l2_normalize as l2_normalize
from jaxtribute.compat.tf.math import reduce_mean
from jaxtribute.compat.tf.math import sigmoid as sigmoid
from jaxtribute.compat.tf.math import softplus as softplus
from jaxtribute.compat.tf.math import tanh as tanh
from jaxtribute.compat.tf.math import top_k as top_k
from jaxtribute.errors import ArgumentError, ShapeError


def relu(features: TensorLike, name: str | None = None) -> Any:
    """Returns `max(features, 0)`. Source: `tf.nn.relu`."""
    return jax.nn.relu(as_tensor(features))


def relu6(features: TensorLike, name: str | None = None) -> Any:
    """Returns `min(max(features, 0), 6)`. Source: `tf.nn.relu6`."""
    return jax.nn.relu6(as_tensor(features))


def selu(features: TensorLike, name: str | None = None) -> Any:
    """Returns the scaled exponential linear unit. Source: `tf.nn.selu`."""
    return jax.nn.selu(as_tensor(features))


def leaky_relu(features: TensorLike, alpha: float = 0.2, name: str | None = None) -> Any:
    """Returns `features`, times `alpha` where negative. Source: `tf.nn.leaky_relu`."""
    x = as_tensor(features)
    return jnp.where(x > 0, x, alpha * x)


def elu(features: TensorLike, name: str | None = None) -> Any:
    """Returns `features`, or `exp(features) - 1` where negative. Source: `tf.nn.elu`."""
    return jax.nn.elu(as_tensor(features))


def gelu(features: TensorLike, approximate: bool = False, name: str | None = None) -> Any:
    """Returns the Gaussian error linear unit. Source: `tf.nn.gelu`."""
    return jax.nn.gelu(as_tensor(features), approximate=approximate)


def silu(features: TensorLike, beta: float = 1.0) -> Any:
    """Returns `features * sigmoid(beta * features)`. Source: `tf.nn.silu`."""
    array = as_tensor(features)
    return array * jax.nn.sigmoid(beta * array)


swish = silu


def softmax(logits: TensorLike, axis: int = -1, name: str | None = None) -> Any:
    """Returns probabilities along an axis. Source: `tf.nn.softmax`."""
    return jax.nn.softmax(as_tensor(logits), axis)


def log_softmax(logits: TensorLike, axis: int = -1, name: str | None = None) -> Any:
    """Returns logarithms of probabilities along an axis. Source: `tf.nn.log_softmax`."""
    return jax.nn.log_softmax(as_tensor(logits), axis)


def l2_loss(t: TensorLike, name: str | None = None) -> Any:
    """Returns half the sum of squares. Source: `tf.nn.l2_loss`."""
    return jnp.sum(jnp.square(as_tensor(t))) / 2


def bias_add(value: TensorLike, bias: TensorLike, name: str | None = None) -> Any:
    """Adds a vector to the last axis. Source: `tf.nn.bias_add`."""
    value, bias = as_tensor(value), as_tensor(bias)
    return value + bias.reshape((1,) * (value.ndim - 1) + bias.shape)


def softmax_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, axis: int = -1, name: str | None = None
) -> Any:
    """Returns one loss an example, of shape `logits.shape` without `axis`.

    Args:
      labels: probabilities, of the shape of `logits`.
      logits: unnormalized logarithms of probabilities.
      axis: the classes.
      name: accepted for compatibility.

    Source: `tf.nn.softmax_cross_entropy_with_logits`.
    """
    return -jnp.sum(as_tensor(labels) * jax.nn.log_softmax(as_tensor(logits), axis), axis)


def sparse_softmax_cross_entropy_with_logits(labels: TensorLike, logits: TensorLike, name: str | None = None) -> Any:
    """Returns one loss an example, of the shape of `labels`.

    Args:
      labels: numbers of classes, an integer array of shape `logits.shape[:-1]`.
      logits: unnormalized logarithms of probabilities, of shape `(..., classes)`.
      name: accepted for compatibility.

    Raises:
      ArgumentError: a label is no class; where that is only known when a compiled function runs, the loss is NaN.
      ShapeError: the shapes do not fit.

    Source: `tf.nn.sparse_softmax_cross_entropy_with_logits`.
    """
    labels, logits = as_tensor(labels), as_tensor(logits)
    if labels.shape != logits.shape[:-1]:
        raise ShapeError(
            f"labels of shape {labels.shape} do not fit logits of shape {logits.shape}. "
            "HINT: give one class number an example; for probabilities use softmax_cross_entropy_with_logits."
        )
    labels = checked(labels, logits.shape[-1], "the classes of the logits")
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.expand_dims(labels, -1), axis=-1)
    return -jnp.squeeze(chosen, -1)


def sigmoid_cross_entropy_with_logits(labels: TensorLike, logits: TensorLike, name: str | None = None) -> Any:
    """Returns one loss an element, of the shape of `logits`. Source: `tf.nn.sigmoid_cross_entropy_with_logits`."""
    labels, logits = as_tensor(labels), as_tensor(logits)
    return jax.nn.softplus(logits) - logits * labels


def compute_average_loss(
    per_example_loss: TensorLike, sample_weight: TensorLike = None, global_batch_size: int | None = None
) -> Any:
    """Returns this replica's part of the mean loss over the global batch; as `jd.nn.compute_average_loss`.

    Source: `tf.nn.compute_average_loss`.
    """
    weight = None if sample_weight is None else as_tensor(sample_weight)
    return nn.compute_average_loss(as_tensor(per_example_loss), weight, global_batch_size)


def embedding_lookup(params: Any, ids: TensorLike, max_norm: None = None, name: str | None = None) -> Any:
    """Returns rows of a table, or of a list of its parts; see `jd.nn.embedding_lookup`.

    Raises:
      ArgumentError: `max_norm`.

    Source: `tf.nn.embedding_lookup`.
    """
    if max_norm is not None:
        raise ArgumentError(f"embedding_lookup: max_norm={max_norm}. HINT: clip the rows that it returns.")
    return nn.embedding_lookup(params, as_tensor(ids))


def depth_to_space(
    input: TensorLike, block_size: int, data_format: Literal["NHWC"] = "NHWC", name: str | None = None
) -> Any:
    """Makes blocks of rows and columns of the channels. Source: `tf.nn.depth_to_space`.

    Raises:
      ShapeError: the channels cannot be divided so.
    """
    array, size = as_tensor(input), block_size
    rows, height, width, channels = array.shape
    if channels % size**2:
        raise ShapeError(f"{channels} channels are no blocks of {size} x {size}. HINT: take another block_size.")
    blocks = array.reshape(rows, height, width, size, size, channels // size**2)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(rows, height * size, width * size, channels // size**2)


def space_to_depth(
    input: TensorLike, block_size: int, data_format: Literal["NHWC"] = "NHWC", name: str | None = None
) -> Any:
    """Makes channels of blocks of rows and columns. Source: `tf.nn.space_to_depth`.

    Raises:
      ShapeError: the rows or columns cannot be divided so.
    """
    array, size = as_tensor(input), block_size
    rows, height, width, channels = array.shape
    if height % size or width % size:
        raise ShapeError(f"{height} x {width} has no blocks of {size} x {size}. HINT: take another block_size, or pad.")
    blocks = array.reshape(rows, height // size, size, width // size, size, channels)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(rows, height // size, width // size, channels * size**2)


def moments(x: TensorLike, axes: Any, shift: Any = None, keepdims: bool = False, name: str | None = None) -> Any:
    """Returns mean and variance over axes. Source: `tf.nn.moments`."""
    array, axes = as_tensor(x), tuple(int(axis) for axis in np.atleast_1d(axes))
    mean = reduce_mean(array, axes, keepdims=True)
    variance = jnp.var(array, axes, keepdims=True)
    if not jnp.issubdtype(array.dtype, jnp.inexact):  # of integers both are integers, as in TensorFlow
        variance = reduce_mean(jnp.square(array - mean), axes, keepdims=True)
    return tuple(one if keepdims else jnp.squeeze(one, axes) for one in (mean, variance))


def scale_regularization_loss(regularization_loss: TensorLike) -> Any:
    """Returns this replica's part of a regularization loss; as `jd.nn.scale_regularization_loss`.

    Source: `tf.nn.scale_regularization_loss`.
    """
    return nn.scale_regularization_loss(as_tensor(regularization_loss))


def __getattr__(name: str) -> Any:
    raise _explain_absent(__name__, "tf.nn", name)


_allow_in_models(__name__, __name__)
