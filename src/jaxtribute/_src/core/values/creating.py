"""Requests for variables: replicas that make one together must ask for the same."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxtribute._src.core.types import Nest
from jaxtribute.errors import ContextError

if TYPE_CHECKING:
    from jaxtribute._src.core.values.variable import Variable


class Making:
    """A variable that is asked for; called, it makes the variable.

    Args:
      kind: the variable's class.
      args: the positional arguments.
      kwargs: the keyword arguments.
    """

    def __init__(self, kind: Any, args: tuple[Nest, ...], kwargs: dict[str, Nest]) -> None:
        self._kind, self._args, self._kwargs = kind, args, kwargs

    def __call__(self) -> Variable:
        """Makes the variable."""
        return type.__call__(self._kind, *self._args, **self._kwargs)

    def asked(self) -> dict[str, str]:
        """Returns in words what is asked for: the arguments, and shape and dtype of an initial value that is known.

        A function that returns the initial value is called for the first replica alone, so nothing is known of it.
        """
        bound = _signature(self._kind).bind(None, *self._args, **self._kwargs).arguments
        value = bound.pop("initial_value", None)
        # Two functions may well do the same.
        words = {name: str(argument) for name, argument in bound.items() if not isinstance(argument, FunctionType)}
        if not callable(value) or hasattr(value, "shape"):
            array: Any = value if hasattr(value, "shape") else np.asarray(value)
            words |= {"shape": str(tuple(array.shape)), "dtype": words.get("dtype", str(array.dtype))}
        return words | {"class": self._kind.__name__}


@cache
def _signature(kind: type[Any]) -> inspect.Signature:
    return inspect.signature(kind.__init__)


def check_alike(makings: Sequence[Making], replicas: Sequence[object]) -> None:
    """Checks that all ask for the same variable, which will be one for them all.

    Args:
      makings: what each asks for.
      replicas: names those who ask, in the same order.

    Raises:
      ContextError: they differ in shape, dtype, name or another argument.
    """
    first, *others = [making.asked() for making in makings]
    for replica, other in zip(replicas[1:], others, strict=True):
        for name in sorted(first.keys() | other.keys()):
            if first.get(name) != other.get(name):
                raise ContextError(
                    f"a replica function makes a variable with {name}={first.get(name)} on replica {replicas[0]} and "
                    f"with {name}={other.get(name)} on replica {replica}, but it is one variable for all replicas. "
                    "HINT: make it the same on every replica, or outside strategy.run."
                )
