"""`PerReplicaSpec`: what a per-replica value looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True, slots=True)
class PerReplicaSpec:
    """Shape and dtype of each local component of a `PerReplica` value.

    Attributes:
      components: one `jax.ShapeDtypeStruct` a local replica. A dimension that varies from element to element
        is None.

    Usable in `jd.function(input_signature=...)`. Source: `PerReplicaSpec` of `tf.distribute`.
    """

    components: tuple[jax.ShapeDtypeStruct, ...]

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
