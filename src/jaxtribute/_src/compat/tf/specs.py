"""Element types, `TensorSpec` and `TensorShape`: descriptions of arrays, for signatures and datasets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxtribute._src.types import DType, Leaf

string = np.dtype(object)
"""Bytes, in NumPy arrays on the host: a device holds numbers only."""


def as_dtype(type_value: DType) -> np.dtype[Any]:
    """Returns the element type of that name, or of a Python or NumPy type. Source: `tf.as_dtype`."""
    # NumPy has no type of strings of any length: they are objects there.
    return string if type_value == "string" else np.dtype(type_value)


class TensorShape(tuple[int | None, ...]):
    """The lengths of an array's axes; None for any.

    Args:
      dims: the lengths.

    Source: `tf.TensorShape`, of which the number of axes must be known here.
    """

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self)

    ndims = rank

    def as_list(self) -> list[int | None]:
        """Returns the lengths. Source: `tf.TensorShape.as_list`."""
        return list(self)

    def num_elements(self) -> int | None:
        """Returns the number of elements, or None if it is not known. Source: `tf.TensorShape.num_elements`."""
        # The lengths are all known; `or 0` only tells the type checker so.
        return None if None in self else math.prod(length or 0 for length in self)

    def is_fully_defined(self) -> bool:
        """Returns whether all lengths are known. Source: `tf.TensorShape.is_fully_defined`."""
        return None not in self

    def __repr__(self) -> str:
        return f"TensorShape({list(self)})"


@dataclass(frozen=True, init=False)
class TensorSpec:
    """Shape and element type of an array.

    Args:
      shape: the shape; None for an axis of any length.
      dtype: the element type.
      name: accepted for compatibility.

    Source: `tf.TensorSpec`.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    name: str | None = None

    def __init__(self, shape: Iterable[int | None], dtype: DType = np.float32, name: str | None = None) -> None:
        # A frozen dataclass refuses plain assignment, and the arguments are converted on their way in.
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", as_dtype(dtype))
        object.__setattr__(self, "name", name)

    @classmethod
    def from_tensor(cls, tensor: Leaf, name: str | None = None) -> TensorSpec:
        """Returns the spec of an array. Source: `tf.TensorSpec.from_tensor`."""
        return cls(tensor.shape, tensor.dtype, name)

    def is_compatible_with(self, spec_or_value: Leaf) -> bool:
        """Returns whether an array or spec of fitting shape and type was given.

        Source: `tf.TensorSpec.is_compatible_with`.
        """
        shape = tuple(spec_or_value.shape)
        return (
            np.dtype(spec_or_value.dtype) == self.dtype
            and len(shape) == len(self.shape)
            # None, on either side, fits any length.
            and all(size in (None, other) or other is None for size, other in zip(self.shape, shape, strict=True))
        )

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype.name}, name={self.name!r})"
