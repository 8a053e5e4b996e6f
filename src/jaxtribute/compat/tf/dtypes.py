"""TensorFlow's names of element types, as NumPy's.

64-bit types become 32-bit ones in arrays unless JAX's `jax_enable_x64` is set; on the host, in datasets, they stay.
"""

from __future__ import annotations

from typing import Any

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

float16: np.dtype[Any] = np.dtype("float16")
half: np.dtype[Any] = float16
float32: np.dtype[Any] = np.dtype("float32")
float64: np.dtype[Any] = np.dtype("float64")
double: np.dtype[Any] = float64
bfloat16: np.dtype[Any] = np.dtype(jnp.bfloat16)
int8: np.dtype[Any] = np.dtype("int8")
int16: np.dtype[Any] = np.dtype("int16")
int32: np.dtype[Any] = np.dtype("int32")
int64: np.dtype[Any] = np.dtype("int64")
uint8: np.dtype[Any] = np.dtype("uint8")
uint16: np.dtype[Any] = np.dtype("uint16")
uint32: np.dtype[Any] = np.dtype("uint32")
uint64: np.dtype[Any] = np.dtype("uint64")
complex64: np.dtype[Any] = np.dtype("complex64")
complex128: np.dtype[Any] = np.dtype("complex128")
bool: np.dtype[Any] = np.dtype("bool")
