"""`tf.function(...).get_concrete_function`: the function for arguments of declared shapes and types."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from jaxtribute import DistributedValues, Variable
from jaxtribute._src.addons.compat.tf.specs import TensorSpec
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.typing import Leaf, Nest

_ANYTHING = object()
"""Stands for the spec of an argument that is passed on as it is, such as an iterator."""


class Concrete:
    """A function with those arguments open for which specs or arrays are given, and the others fixed.

    Args:
      function: the function.
      args: specs, arrays, or values that stay the same, by place.
      kwargs: the same by keyword.

    Attributes:
      function: takes the open arguments.
      specs: their specs, by place.

    Raises:
      TypeError: the arguments are not the function's.
    """

    def __init__(self, function: Callable[..., Any], args: Sequence[Nest], kwargs: Mapping[str, Nest]) -> None:
        self._whole = inspect.signature(function)
        bound = self._whole.bind(*args, **kwargs)
        named = list(self._whole.parameters)
        # By place what has one, and then by keyword: further values of `*args` have numbers for names.
        self._values: dict[str, Nest] = {}
        for place, value in enumerate(bound.args):
            several = (
                place >= len(named) or self._whole.parameters[named[place]].kind is inspect.Parameter.VAR_POSITIONAL
            )
            self._values[f"_{place}" if several else named[place]] = value
        self._by_place = len(bound.args)
        self._values |= bound.kwargs
        self._open = {name: _spec(value) for name, value in self._values.items() if _is_open(value)}
        self.specs = tuple(self._open.values())
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        own = self._signature = inspect.Signature([inspect.Parameter(name, kind) for name in self._open])

        @functools.wraps(function)
        def opened(*args: Nest, **kwargs: Nest) -> Any:
            values = list((self._values | own.bind(*args, **kwargs).arguments).items())
            by_place, by_name = values[: self._by_place], values[self._by_place :]
            return function(*(value for _, value in by_place), **dict(by_name))

        opened.__signature__ = own  # pyright: ignore[reportAttributeAccessIssue]
        self.function = opened

    def opened(self, args: Sequence[Nest], kwargs: Mapping[str, Nest]) -> tuple[Nest, ...]:
        """Returns the open arguments of a call by place; the call may give the fixed ones once more.

        Raises:
          ArgumentTypeError: it gives others than there are, or another value for a fixed one.
        """
        try:
            return self._signature.bind(*args, **kwargs).args
        except TypeError as error:
            reason = error
        try:
            given = self._whole.bind(*args, **kwargs).arguments
        except TypeError:
            given = {}
        fixed = {name: value for name, value in self._values.items() if name not in self._open}
        if self._values.keys() - given.keys() or not all(_same(given[name], value) for name, value in fixed.items()):
            takes = ", ".join(self._open) or "none"
            raise ArgumentTypeError(
                f"a concrete function takes the arguments {takes}: {reason}; fixed are {fixed}. HINT: pass those "
                "alone, or call the tf.function itself."
            )
        return tuple(given[name] for name in self._open)


def _same(given: Nest, fixed: Nest) -> bool:
    return given is fixed or (isinstance(fixed, (bool, int, float, complex, str, bytes)) and given == fixed)


def _is_leaf(node: Nest) -> bool:
    return isinstance(node, (TensorSpec, DistributedValues, Variable))


def _is_open(value: Nest) -> bool:
    return any(map(_varies, jax.tree.leaves(value, is_leaf=_is_leaf)))


def _varies(leaf: Leaf) -> bool:
    """True for what another call may give another value of: variables are the same in all calls."""
    if isinstance(leaf, (Variable, str, bytes)):
        return False
    return isinstance(leaf, (TensorSpec, DistributedValues, Iterable)) or _is_array(leaf)


def _is_array(leaf: Leaf) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _spec(value: Nest) -> Any:
    return jax.tree.map(_of_leaf, value, is_leaf=_is_leaf)


def _of_leaf(leaf: Leaf) -> Any:
    """The spec of a leaf: of an array its shape and type."""
    if isinstance(leaf, (TensorSpec, DistributedValues, Variable)) or not _is_array(leaf):
        return leaf if isinstance(leaf, TensorSpec) else _ANYTHING
    return TensorSpec(leaf.shape, leaf.dtype)
