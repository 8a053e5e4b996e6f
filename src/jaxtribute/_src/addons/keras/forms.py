"""Forms of batches: all but the number of their rows."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax

from jaxtribute.typing import Nest


def batch_of(rows: int, batch: Nest) -> Any:
    """Shapes and dtypes of a batch like another one, of so many rows."""
    # Labels of the host may be int64, of which JAX makes int32.
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype)), batch
    )


def form_of(batch: Nest) -> Hashable:
    """The form of a batch, whatever its number of rows: what is found out about a step holds for all of one form."""
    leaves, tree = jax.tree.flatten(batch)
    return tree, *((leaf.shape[1:], leaf.dtype) for leaf in leaves)
