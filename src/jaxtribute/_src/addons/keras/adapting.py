"""`adapt` of Keras's preprocessing layers to datasets, which Keras itself can only do for those of TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from jaxtribute.typing import Foreign, Nest


def adapt_normalization(original: Callable[..., Any], layer: Foreign, data: Nest) -> None:
    """Gives a `Normalization` the mean and variance of an array, or of the batches of a dataset, read one by one."""
    if _is_array(data):
        original(layer, data)
        return
    count, mean, variance = 0, np.float64(0), np.float64(0)
    for batch in _batches(data):
        if not layer.built:
            layer.build(batch.shape)
        axes = tuple(layer._reduce_axis)
        if 0 not in axes:
            raise ValueError(f"adapt() of axis={layer.axis} to batches of shape {batch.shape}: axis 0 is the batch's.")
        rows = int(np.prod([batch.shape[axis] for axis in axes]))
        if not rows:
            continue
        count += rows
        wide = batch.astype(np.float64)
        step = wide.mean(axes, keepdims=True) - mean
        # The variance of a union: the parts' own, and that of their means.
        share = rows / count
        variance = (1 - share) * variance + share * wide.var(axes, keepdims=True) + share * (1 - share) * step**2
        mean = mean + share * step
    if not count:
        raise ValueError("adapt() got a dataset without examples. HINT: does it end before its first batch?")
    layer.adapt_mean.assign(np.reshape(mean, layer.adapt_mean.shape))
    layer.adapt_variance.assign(np.reshape(variance, layer.adapt_variance.shape))
    layer.finalize_state()


def adapt_discretization(_: Callable[..., Any], layer: Foreign, data: Nest, steps: int | None = None) -> None:
    """Gives a `Discretization` the quantiles of an array, or of the batches of a dataset.

    Args:
      _: Keras's own method, which asks for TensorFlow in any case.
      layer: the layer.
      data: the array or dataset.
      steps: the number of batches to read; by default all.
    """
    if layer.num_bins is None:
        raise ValueError("adapt() of a Discretization with bin_boundaries. HINT: make it with num_bins instead.")
    layer.reset_state()
    for batch in [data] if _is_array(data) else itertools.islice(_batches(data), steps):
        layer.update_state(batch)
    layer.finalize_state()


def _is_array(data: Nest) -> bool:
    return isinstance(data, np.ndarray) or keras.ops.is_tensor(data)


def _batches(data: Nest) -> Iterator[np.ndarray[Any, Any]]:
    """The batches of a dataset; of tuples, such as examples with labels, the first part."""
    indexed = not hasattr(data, "__iter__")  # a `PyDataset`
    for batch in (data[place] for place in range(len(data))) if indexed else data:
        yield np.asarray(batch[0] if isinstance(batch, tuple) else batch)
