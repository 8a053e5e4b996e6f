"""Specs of datasets' elements: known from the sources, and found out by calling functions on a few elements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxtribute import ArraySpec
from jaxtribute._src.addons.compat.tf.specs import TensorShape, TensorSpec, string
from jaxtribute.errors import InputError
from jaxtribute.typing import Leaf, Nest

_LENGTH = 2
"""The length of an axis of any length in elements that are made up. Of one row much would broadcast."""


@dataclass(frozen=True)
class DatasetSpec:
    """Description of a dataset within a dataset, as `window` makes them. Source: `tf.data.DatasetSpec`."""

    element_spec: Any


def of_element(element: Nest) -> Any:
    """The spec of one element."""
    return jax.tree.map(_of_leaf, element)


def _of_leaf(leaf: Leaf) -> Any:
    if hasattr(leaf, "element_spec"):
        return DatasetSpec(leaf.element_spec)
    array = np.asarray(leaf)
    # Strings are bytes, of any length.
    return TensorSpec(array.shape, string if array.dtype.kind in "OSU" else array.dtype)


def of_any_lengths(element: Nest) -> Any:
    """The spec of elements of which one is known: the others may have axes of other lengths."""
    return open_lengths(of_element(element))


def open_lengths(spec: Nest) -> Any:
    """The spec of elements with axes of any lengths."""
    return _each(lambda shape: [None] * len(shape), spec)


def opened(arrays: Nest, spec: Nest) -> Any:
    """Specs of arrays of the first element, in which the axes have any length that have it in a spec of all elements.

    Args:
      arrays: `ArraySpec`s.
      spec: what is known of all elements.
    """
    leaves, tree = jax.tree.flatten(arrays)
    try:
        return tree.unflatten(map(_opened, leaves, tree.flatten_up_to(spec)))
    except ValueError:  # another structure, of which it tells nothing
        return arrays


def _opened(array: ArraySpec, spec: Any) -> ArraySpec:
    if not isinstance(spec, TensorSpec):
        return array
    ranks_differ = spec.shape.rank != len(array.shape)
    known: Sequence[Any] = [None] * len(array.shape) if ranks_differ else list(spec.shape)
    lengths = (None if its is None else mine for mine, its in zip(array.shape, known, strict=True))
    return ArraySpec(tuple(lengths), array.dtype)


def of_rows(arrays: Nest) -> Any:
    """The spec of the rows of arrays."""
    return unbatched(of_element(arrays))


def has_strings(spec: Nest) -> bool:
    """True if a part of elements is of strings."""
    return any(isinstance(leaf, TensorSpec) and leaf.dtype == string for leaf in jax.tree.leaves(spec))


def batched(spec: Nest, size: int | None) -> Any:
    """The spec of batches of so many elements; None for any number."""
    return _each(lambda shape: [size, *shape], spec)


def unbatched(spec: Nest) -> Any:
    """The spec of what batches are taken apart into."""
    return _each(lambda shape: shape[1:], spec)


def padded(spec: Nest, shapes: Sequence[Any], size: int | None) -> Any:
    """The spec of batches of elements that are padded to shapes, one for each part; None for the longest."""
    leaves, tree = jax.tree.flatten(spec)
    return tree.unflatten(
        _each(lambda own, shape=shape: [size, *(own if shape is None else map(_length, shape))], leaf)
        for leaf, shape in zip(leaves, shapes, strict=True)
    )


def _length(length: Any) -> int | None:
    return None if length in (None, -1) else int(length)


def _each(change: Callable[[Any], Any], spec: Nest) -> Any:
    """Specs of other shapes; what has an unknown number of axes still has."""

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, DatasetSpec) or leaf.shape.rank is None:
            return leaf
        return TensorSpec(change(leaf.shape), leaf.dtype)

    return jax.tree.map(changed, spec)


def general(one: Nest, other: Nest) -> Any:
    """The spec of elements of both specs: an axis that differs has any length."""
    if jax.tree.structure(one) != jax.tree.structure(other):
        return one
    return jax.tree.map(_general, one, other)


def _general(one: Any, other: Any) -> Any:
    if isinstance(one, DatasetSpec) or isinstance(other, DatasetSpec):
        return DatasetSpec(general(one.element_spec, other.element_spec))
    if one.shape.rank is None or one.shape.rank != other.shape.rank:
        return TensorSpec(None, one.dtype)
    lengths = [mine if mine == its else None for mine, its in zip(one.shape, other.shape, strict=True)]
    return TensorSpec(lengths, one.dtype)


def of_results(function: Callable[[Nest], Any], elements: Sequence[Nest], spec: Nest) -> Any:
    """The spec of what a function makes of elements, of which it is called on a few, and on a longer one.

    Args:
      function: makes an element of another one.
      elements: the first of the elements; none of an empty dataset.
      spec: their spec.

    Raises:
      InputError: there are no elements, and the function fails on one that is made up.
    """
    if elements:
        found = functools.reduce(general, [of_element(function(element)) for element in elements])
        longer = jax.tree.map(_longer, elements[0], spec)
    else:
        try:
            found = of_element(function(jax.tree.map(lambda leaf: _made(leaf, _LENGTH), spec)))
            longer = jax.tree.map(lambda leaf: _made(leaf, _LENGTH + 1), spec)
        except Exception as error:
            raise InputError(
                f"the dataset is empty, so nothing is known of its elements: a function of it fails on zeros of {spec} "
                f"({error}). HINT: give it an element, or write the spec down."
            ) from error
    if not any(_varies(leaf) for leaf in jax.tree.leaves(spec)):
        return found
    # An axis of the result has any length if it grows with the element's axes of any length.
    try:
        return general(found, of_element(function(longer)))
    except Exception:  # noqa: BLE001 (it need not work on other lengths than the data's)
        return _each(lambda shape: [None, *shape[1:]] if len(shape) else shape, found)


def _varies(spec: Any) -> bool:
    return not isinstance(spec, DatasetSpec) and not spec.shape.is_fully_defined()


def _longer(leaf: Any, spec: Any) -> Any:
    """A leaf with one more row in each axis that may have any length."""
    if isinstance(spec, DatasetSpec) or spec.shape.rank is None:
        return leaf
    for axis, length in enumerate(spec.shape):
        if length is not None:
            continue
        rows = np.shape(leaf)[axis]
        if rows:
            leaf = np.take(leaf, np.arange(rows + 1) % rows, axis)
        else:
            shape = list(np.shape(leaf))
            leaf = np.full([*shape[:axis], 1, *shape[axis + 1 :]], b"" if spec.dtype == string else 0, spec.dtype)
    return leaf


def _made(spec: Any, length: int) -> Any:
    if isinstance(spec, DatasetSpec):
        from jaxtribute._src.addons.compat.tf.dataset import Dataset
        from jaxtribute._src.addons.compat.tf.pipelines import Streamed

        row = jax.tree.map(lambda leaf: _made(leaf, length), spec.element_spec)
        return Dataset(Streamed(lambda _: iter([row] * length), length, lambda: spec.element_spec))
    shape: TensorShape = spec.shape
    if shape.rank is None:
        raise TypeError("the number of axes is not known")
    lengths = [length if one is None else one for one in shape]
    made = np.full(lengths, b"" if spec.dtype == string else 0, spec.dtype)
    return b"" if spec.dtype == string and not lengths else made
