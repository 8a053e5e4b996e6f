"""Sparse arrays, whose own arrays are indices and entries: adding those up over replicas would mean nothing."""

from __future__ import annotations

import sys
from typing import Any

from jaxtribute._src.core.values.distributed import PerReplica
from jaxtribute._src.core.values.operators import operand
from jaxtribute._src.core.values.scatter import IndexedSlices
from jaxtribute.errors import ArgumentTypeError, UnsupportedError


def is_sparse(value: object) -> bool:
    """True for sparse matrices of JAX (BCOO and its like) and of SciPy."""
    # Looked up, not imported: a program that has not loaded the library has no such matrix.
    ours, scipys = sys.modules.get("jax.experimental.sparse"), sys.modules.get("scipy.sparse")
    return (ours is not None and isinstance(value, ours.JAXSparse)) or (scipys is not None and scipys.issparse(value))


def dense_operand(value: object) -> Any:
    """The array that `value` stands for, if it stands for one: a dense one for a sparse array.

    Raises:
      ArgumentTypeError: a string.
    """
    if isinstance(value, (str, bytes)):
        raise ArgumentTypeError(f"{value!r} is no number or array. HINT: collectives take nests of arrays.")
    return value.todense() if is_sparse(value) else operand(value)  # pyright: ignore[reportAttributeAccessIssue]


def refuse_sparse(value: object, what: str) -> None:
    """Refuses a sparse array, or `IndexedSlices`, whose own arrays are the replicas'.

    Args:
      value: a leaf of a nest.
      what: what it was given to.

    Raises:
      ArgumentTypeError: `value` is sparse.
    """
    components = value.values if isinstance(value, PerReplica) and value.is_tuple else (value,)
    if any(isinstance(component, IndexedSlices) for component in components):
        raise UnsupportedError(
            f"{what} does not support IndexedSlices, {value!r}: rows are each replica's own. HINT: reduce or gather "
            "them in the replica function, by ctx.all_reduce or ctx.all_gather, or return slices.values and "
            "slices.indices and gather both."
        )
    if is_sparse(value):
        raise ArgumentTypeError(
            f"{what} was given {value!r}: its indices and entries are each replica's own, and cannot be put together. "
            "HINT: return matrix.todense() from the replica function, or call all_reduce there."
        )
