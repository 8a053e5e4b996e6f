"""TensorFlow's names of element types, as NumPy's.

64-bit types become 32-bit ones in arrays unless JAX's `jax_enable_x64` is set; on the host, in datasets, they stay.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxtribute._src.addons.compat.tf.specs import as_dtype, string

__all__ = [
    "DType",
    "as_dtype",
    "bfloat16",
    "bool",
    "complex64",
    "complex128",
    "double",
    "float16",
    "float32",
    "float64",
    "half",
    "int8",
    "int16",
    "int32",
    "int64",
    "string",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

DType = np.dtype

float16 = half = np.dtype("float16")
float32 = np.dtype("float32")
float64 = double = np.dtype("float64")
bfloat16 = np.dtype(jnp.bfloat16)
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")
bool = np.dtype("bool")
