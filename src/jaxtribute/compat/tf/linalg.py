"""A little of `tf.linalg`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent as _explain_absent
from jaxtribute._src.addons.compat.tf.conversion import TensorLike, as_tensor
from jaxtribute._src.addons.compat.tf.symbolic import allow_in_models as _allow_in_models
from jaxtribute.compat.tf.math import einsum as einsum
from jaxtribute.compat.tf.math import global_norm as global_norm
from jaxtribute.compat.tf.math import l2_normalize as l2_normalize
from jaxtribute.compat.tf.math import matmul as matmul
from jaxtribute.compat.tf.math import matvec as matvec
from jaxtribute.compat.tf.math import norm as norm
from jaxtribute.compat.tf.math import tensordot as tensordot


def band_part(input: TensorLike, num_lower: int, num_upper: int, name: str | None = None) -> Any:
    """Returns matrices with zeros outside of a band around the diagonal; a negative number stands for all of a side.

    Source: `tf.linalg.band_part`.
    """
    array = as_tensor(input)
    array = array if num_upper < 0 else jnp.tril(array, num_upper)
    return array if num_lower < 0 else jnp.triu(array, -num_lower)


def __getattr__(name: str) -> Any:
    raise _explain_absent(__name__, "tf.linalg", name)


_allow_in_models(__name__, __name__)
