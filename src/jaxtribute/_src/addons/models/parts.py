"""The protocol of foreign models: which arrays one consists of, what each is for, and how it is put together again.

A model is taken apart once, when a `jd.Model` is made of it. What is left without its arrays is its *outline*, which
makes a fresh model of their present values wherever code uses it, and finds out what that code has changed. One file a
library says how: `nnx` for Flax NNX, `trees` for everything that is a nest to JAX, such as the modules of Equinox.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute.errors import ArgumentError, ArgumentTypeError
from jaxtribute.typing import Leaf, Nest

Path = tuple[Any, ...]


class Kind(Enum):
    """The purpose of an array of a model; the value is what messages say of it."""

    PARAMETER = "a parameter, which only the optimizer changes in a step"
    FROZEN = "a parameter that is not trained, as wrt says"
    STATISTIC = "a statistic, which becomes the mean of what the replicas make of it"
    ALIKE = "a state that every replica changes in the same way, such as a count"
    KEY = "a random key, of which each of several replicas gets one of its own"
    FIXED = "an array that steps only read"


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a model.

    Attributes:
      path: where it is: attributes, keys and places in lists.
      value: the array, of JAX (also of random keys) or NumPy; of an abstract model its `jax.ShapeDtypeStruct`.
      kind: what it is for.
    """

    path: Path
    value: Any
    kind: Kind

    @property
    def name(self) -> str:
        """The path as one name, its parts joined with slashes."""
        return "/".join(map(str, self.path))


class Outline(Protocol):
    """A model without its arrays."""

    def build(self, values: Sequence[Any]) -> Any:
        """A new model of arrays in the order of the parts."""
        ...

    def values(self, model: Nest) -> list[Any]:
        """The arrays that a model which `build` has made holds now, in the order of the parts.

        Raises:
          VariableError: the model has got others than it had, or lost some.
        """
        ...

    def nest(self, leaves: Sequence[Any]) -> Any:
        """A nest, in the library's way, of what is given for each parameter, in the order of the parts."""
        ...

    def wider_than(self, dtype: Any, model: Nest) -> list[str]:
        """Parts of a model that compute in a longer floating type than this, whatever they are given."""
        ...


class Library(Protocol):
    """The way to take the models of a library apart; each is a module of this package."""

    def accepts(self, model: Nest) -> bool:
        """True if the library knows the model."""
        ...

    def take_apart(self, model: Nest, wrt: Any) -> tuple[list[Part], Outline]:
        """The model's parts, in an order that is the same in every process, and its outline.

        Args:
          model: the model.
          wrt: which of its parameters are trained, as the library's users say it; None for all.
        """
        ...


_LIBRARIES = {"flax.nnx": "nnx", "jax": "trees"}
"""The file for the models of each library that the program may have loaded; the first that accepts a model takes it."""


def take_apart(model: Nest, wrt: Any = None) -> tuple[list[Part], Outline]:
    """Takes a model apart.

    Args:
      model: the model.
      wrt: which of its parameters are trained; None for all.

    Raises:
      ArgumentTypeError: the model holds no arrays, or a leaf of which it is not known whether it is trained.
      ArgumentError: the model must be made in another way, as the message says.
    """
    for library, file in _LIBRARIES.items():
        # A model of a library that was never imported cannot be; importing it for the question would cost seconds.
        if library not in sys.modules:
            continue
        known = cast("Library", import_module(f"jaxtribute._src.addons.models.{file}"))
        if known.accepts(model):
            parts, outline = known.take_apart(model, wrt)
            if wrt is not None and not any(part.kind is Kind.PARAMETER for part in parts):
                raise ArgumentError(
                    f"wrt={wrt!r} selects no floating array of the {type(model).__name__}. HINT: leave wrt out to "
                    "train all parameters, or name some that it has, such as nnx.LoRAParam."
                )
            # The library knows the model and finds nothing in it: no other one would know better.
            if not parts:
                break
            return parts, outline
    raise ArgumentTypeError(
        f"the model is a {type(model).__name__}, which holds no arrays. HINT: pass a module of Flax NNX or Equinox, or "
        "a nest of arrays such as the parameters that a module of Flax Linen or Haiku is initialised with."
    )


def is_array(value: Leaf) -> bool:
    """True if `value` is an array, or the shape of one that is to come."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def is_key(value: Leaf) -> bool:
    """True if `value` is an array of random keys."""
    return isinstance(value, (jax.Array, jax.ShapeDtypeStruct)) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def is_inexact(value: Leaf) -> bool:
    """True if `value` is an array of floating or complex numbers."""
    return is_array(value) and jnp.issubdtype(value.dtype, jnp.inexact)
