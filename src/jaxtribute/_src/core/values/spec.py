"""Specs: shapes and dtypes of arrays and of per-replica values that are yet to come."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute.errors import ArgumentTypeError


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of an array; unlike a `jax.ShapeDtypeStruct` it may leave lengths open.

    Args:
      shape: the length of each axis; None for any length.
      dtype: the dtype, of NumPy or JAX, or its name.

    Usable in `jd.function(input_signature=...)`; leaves of a dataset's `element_spec`. Source: `tf.TensorSpec`.

    Raises:
      ArgumentTypeError: a length is no whole number from 0 up, or `dtype` names no dtype.

    Examples:
      >>> spec = jd.ArraySpec((None, 3), jnp.float32)
      >>> step = jd.function(lambda x: x.sum(), input_signature=[spec])
      >>> float(step(np.ones((5, 3), "float32")))
      15.0
    """

    shape: tuple[int | None, ...]
    dtype: Any = np.float32

    def __post_init__(self) -> None:
        try:
            shape = tuple(None if size is None else operator.index(size) for size in self.shape)
            # Random keys have a dtype of JAX's own, which NumPy does not know.
            extended = jnp.issubdtype(self.dtype, jax.dtypes.extended)
            dtype = self.dtype if extended else np.dtype(self.dtype)
        except TypeError as error:
            raise ArgumentTypeError(
                f"ArraySpec({self.shape!r}, {self.dtype!r}) describes no array: {error}. "
                "HINT: give a tuple of lengths, None for any length, and a dtype such as jnp.float32."
            ) from None
        if any(size is not None and size < 0 for size in shape):
            raise ArgumentTypeError(
                f"ArraySpec({self.shape!r}) has a negative length. HINT: None stands for an axis of any length."
            )
        # Frozen, since specs are compared and kept; this brings what the user wrote into one form.
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)

    def __repr__(self) -> str:
        return f"ArraySpec({self.shape}, {self.dtype})"


@dataclass(frozen=True, slots=True)
class PerReplicaSpec:
    """Shape and dtype of each local component of a `PerReplica` value.

    Attributes:
      components: one `ArraySpec` per local replica. A dimension that varies from element to element is None.

    Usable in `jd.function(input_signature=...)`. Source: `PerReplicaSpec` of `tf.distribute`.
    """

    components: tuple[ArraySpec, ...]

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of one component."""
        return self.components[0].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the components."""
        return self.components[0].dtype

    def __repr__(self) -> str:
        return f"PerReplicaSpec({', '.join(map(repr, self.components))})"
