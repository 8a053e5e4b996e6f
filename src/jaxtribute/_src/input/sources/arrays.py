"""NumPy and JAX arrays, and trees of them: a dataset of their rows."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxtribute._src.input.array_source import make_numpy_dataset
from jaxtribute._src.input.sources.base import Source, has_arrays_only, register
from jaxtribute._src.input.sources.grain_map import MapSource


def _accepts(dataset: Any) -> bool:
    """An array, or a tuple or mapping of them. A list is an iterable of batches instead."""
    if isinstance(dataset, (jax.Array, np.ndarray)):
        return bool(dataset.ndim)
    return isinstance(dataset, (tuple, dict)) and has_arrays_only(dataset)


def _make(dataset: Any) -> Source:
    return MapSource(make_numpy_dataset(dataset))


register("NumPy or JAX arrays in a tuple or dict", _accepts, _make, rank=10)
