"""Element types, `TensorSpec` and `TensorShape`: descriptions of arrays, for signatures and datasets."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from jaxtribute._src.addons.compat.tf.absences import telling_absent
from jaxtribute.typing import DType, Leaf

Shape: TypeAlias = "Iterable[int | None] | int | None"
"""Lengths of axes, with None for any; or None for any number of them."""

string: np.dtype[Any] = np.dtype(object)
"""Bytes, in NumPy arrays on the host: a device holds numbers only."""


def as_dtype(type_value: DType) -> np.dtype[Any]:
    """Returns the element type of that name, or of a Python or NumPy type. Source: `tf.as_dtype`."""
    # NumPy has no type of strings of any length: they are objects there.
    return string if type_value == "string" else np.dtype(type_value)


@telling_absent("tf.TensorShape")
class TensorShape(tuple[int | None, ...]):
    """The lengths of an array's axes.

    Args:
      dims: the lengths, with None for any, or one of them; None if the number of axes is not known either.

    Raises:
      ValueError: a length is negative.

    Source: `tf.TensorShape`.
    """

    _known: bool

    def __new__(cls, dims: Iterable[int | None] | int | None) -> TensorShape:
        """Makes the shape."""
        known = dims is not None and getattr(dims, "_known", True)
        listed = [] if dims is None else [dims] if isinstance(dims, int) else list(dims) if known else []
        lengths = [None if length is None else operator.index(length) for length in listed]
        if any(length is not None and length < 0 for length in lengths):
            raise ValueError(f"a shape has no negative lengths: {lengths}. HINT: write None for any length.")
        shape = super().__new__(cls, lengths)
        shape._known = known
        return shape

    @property
    def rank(self) -> int | None:
        """The number of axes; None if it is not known."""
        return len(self) if self._known else None

    ndims = rank

    @property
    def dims(self) -> list[int | None] | None:
        """The lengths; None if not even their number is known."""
        return list(self) if self._known else None

    def as_list(self) -> list[int | None]:
        """Returns the lengths. Source: `tf.TensorShape.as_list`.

        Raises:
          ValueError: their number is not known.
        """
        return list(self)

    def num_elements(self) -> int | None:
        """Returns the number of elements, or None if it is not known. Source: `tf.TensorShape.num_elements`."""
        # The lengths are all known; `or 0` only tells the type checker so.
        return math.prod(length or 0 for length in self) if self.is_fully_defined() else None

    def is_fully_defined(self) -> bool:
        """Returns whether all lengths are known. Source: `tf.TensorShape.is_fully_defined`."""
        return self._known and None not in tuple(self)

    def is_compatible_with(self, other: Shape) -> bool:
        """Returns whether an array may have both shapes. Source: `tf.TensorShape.is_compatible_with`."""
        other = TensorShape(other)
        if not (self._known and other._known):
            return True
        # None, on either side, fits any length.
        return len(self) == len(other) and all(
            None in (mine, its) or mine == its for mine, its in zip(self, other, strict=True)
        )

    def assert_is_compatible_with(self, other: Shape) -> None:
        """Checks that an array may have both shapes. Source: `tf.TensorShape.assert_is_compatible_with`.

        Raises:
          ValueError: it may not.
        """
        if not self.is_compatible_with(other):
            raise ValueError(f"shapes {self} and {TensorShape(other)} are not compatible. HINT: make them alike.")

    def merge_with(self, other: Shape) -> TensorShape:
        """Returns what both shapes together say. Source: `tf.TensorShape.merge_with`.

        Raises:
          ValueError: they contradict each other.
        """
        other = TensorShape(other)
        self.assert_is_compatible_with(other)
        if not (self._known and other._known):
            return self if self._known else other
        return TensorShape([its if mine is None else mine for mine, its in zip(self, other, strict=True)])

    def concatenate(self, other: Shape) -> TensorShape:
        """Returns the shape with another's lengths behind its own. Source: `tf.TensorShape.concatenate`."""
        other = TensorShape(other)
        return TensorShape([*self, *other] if self._known and other._known else None)

    def with_rank(self, rank: int) -> TensorShape:
        """Returns the shape with that number of axes. Source: `tf.TensorShape.with_rank`.

        Raises:
          ValueError: it has another number.
        """
        if self._known and len(self) != rank:
            raise ValueError(f"shape {self} must have rank {rank}. HINT: reshape the array.")
        return self if self._known else TensorShape([None] * rank)

    def assert_has_rank(self, rank: int) -> None:
        """Checks the number of axes, as `with_rank` does. Source: `tf.TensorShape.assert_has_rank`."""
        self.with_rank(rank)

    # As a tuple it is empty if nothing is known; that must not be taken for the shape of a scalar.

    def __iter__(self) -> Iterator[int | None]:
        self._check()
        return super().__iter__()

    def __len__(self) -> int:
        self._check()
        return super().__len__()

    def _check(self) -> None:
        if not self._known:
            raise ValueError("this shape has an unknown number of axes. HINT: ask `rank` first.")

    def __bool__(self) -> bool:
        return self._known

    def __getitem__(self, key: Any) -> Any:
        if self._known:
            found = super().__getitem__(key)
            return TensorShape(found) if isinstance(key, slice) else found
        stop = key.stop if isinstance(key, slice) else None
        if not isinstance(key, slice):
            return None
        # Of the first axes the number is known, of those behind not.
        return TensorShape([None] * len(range(key.start or 0, stop)) if stop is not None and stop >= 0 else None)

    def __add__(self, other: Any) -> TensorShape:
        return self.concatenate(other)

    def __radd__(self, other: Any) -> TensorShape:
        return TensorShape(other).concatenate(self)

    def __eq__(self, other: object) -> bool:
        try:
            same = TensorShape(other)  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError):
            return NotImplemented
        return self._known == same._known and super().__eq__(same)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return super().__hash__() if self._known else hash(TensorShape)

    def __str__(self) -> str:
        return super().__repr__() if self._known else "<unknown>"

    def __repr__(self) -> str:
        return f"TensorShape({list(self) if self._known else None})"


@telling_absent("tf.TensorSpec")
@dataclass(frozen=True, init=False)
class TensorSpec:
    """Shape and element type of an array.

    Args:
      shape: the shape, with None for an axis of any length; None for any shape.
      dtype: the element type.
      name: accepted for compatibility.

    Source: `tf.TensorSpec`.
    """

    shape: TensorShape
    dtype: np.dtype[Any]
    name: str | None = None

    def __init__(self, shape: Shape, dtype: DType = np.float32, name: str | None = None) -> None:
        # A frozen dataclass refuses plain assignment, and the arguments are converted on their way in.
        object.__setattr__(self, "shape", TensorShape(shape))
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
        return np.dtype(spec_or_value.dtype) == self.dtype and self.shape.is_compatible_with(spec_or_value.shape)

    def __repr__(self) -> str:
        kind = "string" if self.dtype == string else self.dtype.name
        return f"TensorSpec(shape={self.shape}, dtype={kind}, name={self.name!r})"
