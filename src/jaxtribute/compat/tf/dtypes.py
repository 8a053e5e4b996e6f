"""TensorFlow's names of element types, as NumPy's.

64-bit types become 32-bit ones in arrays unless JAX's `jax_enable_x64` is set; on the host, in datasets, they stay.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

DType = np.dtype

float16 = half = np.dtype("float16")
float32 = np.dtype("float32")
float64 = double = np.dtype("float64")
bfloat16 = np.dtype(jnp.bfloat16)
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")
bool = np.dtype("bool")
string = np.dtype(object)
"""Bytes, in NumPy arrays on the host: a device holds numbers only."""


def as_dtype(type_value: Any) -> np.dtype[Any]:
    """Returns the element type of that name, or of a Python or NumPy type. Source: `tf.as_dtype`."""
    return string if type_value == "string" else np.dtype(type_value)
