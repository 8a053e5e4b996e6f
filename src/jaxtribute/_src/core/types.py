"""Names for the types of arguments that Python's own types say little about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np

Array: TypeAlias = jax.Array
"""An array of JAX: one that is there, or the tracer of one in a program."""
HostArray: TypeAlias = np.ndarray[Any, Any]
"""An array of NumPy, of any shape and element type."""
Number: TypeAlias = bool | int | float | complex
"""A number of Python, which takes the element type of what it meets."""
ArrayLike: TypeAlias = jax.Array | np.ndarray[Any, Any] | np.generic | bool | int | float | complex
"""An array, or what becomes one."""
Numeric: TypeAlias = Any
"""An array of JAX or NumPy, a tracer, a number, or a value that stands for an array: a variable, a `Mirrored`."""
Shape: TypeAlias = tuple[int, ...]
"""Sizes of an array's dimensions."""
DType: TypeAlias = Any
"""An element type in any form that NumPy takes: `np.float32`, `"float32"`, `jnp.bfloat16`."""
Nest: TypeAlias = Any
"""Leaves in containers: lists, tuples, dictionaries and other pytrees, at any depth; a single leaf too."""
Leaf: TypeAlias = Any
"""One leaf of a nest: an array, a number, a distributed value, a variable, or an object that is passed through."""
Function: TypeAlias = Callable[..., Any]
"""A function of the user's: any arguments, any result."""
Foreign: TypeAlias = Any
"""An object of a library that is imported only when it is used, or that has no types."""
Json: TypeAlias = Any
"""A value of JSON: None, a number, a text, a list or a dictionary of these."""
