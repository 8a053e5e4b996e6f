"""Padded batches: elements of different lengths in one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxtribute._src.addons.compat.tf import element_specs
from jaxtribute._src.addons.compat.tf.pipelines import Indexed, Pipeline, Spec
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import Nest


def padded(rows: Sequence[Nest], shapes: Nest, values: Nest) -> Any:
    """Rows of one structure as arrays, padded at their ends.

    Raises:
      ArgumentError: a row is larger than its padded shape.
    """
    return padded_to(rows, shapes_of_parts(shapes, jax.tree.structure(rows[0])), values)


def padded_to(rows: Sequence[Nest], wanted: Sequence[Any], values: Nest) -> Any:
    """The same, of a shape for each part."""
    tree = jax.tree.structure(rows[0])
    fill = [values] * tree.num_leaves if values is None or np.ndim(values) == 0 else tree.flatten_up_to(values)
    columns = zip(*[jax.tree.leaves(row) for row in rows], strict=True)
    return tree.unflatten(list(map(_padded, columns, wanted, fill)))


def padded_spec(pipeline: Pipeline, shapes: Nest, size: int | None) -> Spec:
    """Finds out the spec of padded batches of a pipeline's elements; a size of None for any number of rows."""

    def spec() -> Any:
        own = pipeline.element_spec()
        if not (isinstance(pipeline, Indexed) and pipeline.fixed):
            # The first elements may happen to be as long as each other: nobody pads what always is.
            own = element_specs.open_lengths(own)
        return element_specs.padded(own, shapes_of_parts(shapes, jax.tree.structure(own)), size)

    return spec


def shapes_of_parts(shapes: Nest, tree: Any) -> list[Any]:
    """The shape of each part of an element of that structure, as users give them; None for the longest."""
    if shapes is None:
        return [None] * tree.num_leaves
    # A single one is a list, a tuple or a `TensorShape`.
    one = tree.num_leaves == 1 and not isinstance(shapes, dict)
    return [shapes] if one else tree.flatten_up_to(shapes)


def _padded(column: Sequence[Any], shape: Any, value: Any) -> np.ndarray[Any, Any]:
    # Strings as objects: an array of NumPy's own bytes would be as wide as its first row.
    arrays = [np.array(row, dtype=object) if isinstance(row, bytes) else np.asarray(row) for row in column]
    longest = np.max([array.shape for array in arrays], axis=0).astype(int)
    sizes = [
        int(most) if one in (None, -1) else int(one)
        for one, most in zip(longest if shape is None else shape, longest, strict=True)
    ]
    strings = arrays[0].dtype == object
    made = np.full((len(arrays), *sizes), (b"" if strings else 0) if value is None else value, arrays[0].dtype)
    for row, array in enumerate(arrays):
        if any(size < one for size, one in zip(sizes, array.shape, strict=True)):
            raise ArgumentError(f"an element of shape {array.shape} does not fit into {sizes}. HINT: use None there.")
        made[(row, *map(slice, array.shape))] = array[()]  # of one string, the string
    return made
