"""Sizes of arrays that are divided over devices."""

from __future__ import annotations

import math

import numpy as np
from jax.sharding import Sharding

from jaxtribute.typing import DType


def bytes_on_each(shape: tuple[int, ...], dtype: DType, where: Sharding | None) -> int:
    """Bytes of an array on each device that has a part of it; `where` is None if that is the whole array."""
    return math.prod(shape if where is None else where.shard_shape(shape)) * np.dtype(dtype).itemsize
