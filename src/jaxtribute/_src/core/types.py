"""Names for the types of arguments that Python's own types say little about."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import jax
import numpy as np

K = TypeVar("K")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    T = WithDefault("T", default=jax.Array, covariant=True)
    """The type of a component; `PerReplica` alone is `PerReplica[jax.Array]`."""

    E = WithDefault("E", default=Any, covariant=True)
    """The type of an element of a dataset."""

    # jaxlib says nothing of the class's type.
    @runtime_checkable
    class Device(Protocol):
        """A device of JAX, `jax.Device`."""

        @property
        def id(self) -> int: ...
        @property
        def platform(self) -> str: ...
        @property
        def device_kind(self) -> str: ...
        @property
        def process_index(self) -> int: ...
        @property
        def local_hardware_id(self) -> int | None: ...
        @property
        def client(self) -> Any: ...
        def memory_stats(self) -> dict[str, int] | None: ...
else:
    T = TypeVar("T", covariant=True)
    E = TypeVar("E", covariant=True)
    Device = jax.Device

L = TypeVar("L", bound="jax.Array | np.ndarray[Any, Any] | np.generic | complex | str | bytes")
"""The type of one leaf of what a function returns: an array, or a value of Python."""

Array: TypeAlias = jax.Array
"""An array of JAX: one that is there, or the tracer of one in a program."""
HostArray: TypeAlias = np.ndarray[Any, Any]
"""An array of NumPy, of any shape and element type."""
Number: TypeAlias = bool | int | float | complex
"""A number of Python, which takes the element type of what it meets."""


class HasArray(Protocol):
    """A value that stands for an array: a variable, a `Mirrored`."""

    def __jax_array__(self) -> jax.Array: ...


ArrayLike: TypeAlias = jax.Array | np.ndarray[Any, Any] | np.generic | bool | int | float | complex | HasArray
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
