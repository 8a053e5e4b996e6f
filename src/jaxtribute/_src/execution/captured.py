"""Arrays that a traced function takes from around it: constants of its program, whatever becomes of their owners."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxtribute.errors import VariableError

_LOG = logging.getLogger(__name__)
_LARGE = 1 << 20
"""Bytes of an array that is worth a word."""
_OWNERS = {
    "flax.nnx": (
        "Variable",
        "make it a jd.Model, jd.Model(module), in the strategy's scope, and use that",
    ),
    "equinox": (
        "Module",
        "make it a jd.Model, jd.Model(module), in the strategy's scope, or pass the module as an argument",
    ),
}
"""By library, the class whose objects hold what training changes, and what to do."""


def check_captured(program: Any, name: str) -> None:
    """Checks that a program's constants are not the state of a library's modules; names large ones in a debug log.

    Args:
      program: a traced function: its jaxpr, with constants.
      name: the function's name.

    Raises:
      VariableError: a module of Flax NNX or Equinox holds one, so that what training changes would not be seen.
    """
    arrays = [constant for constant in _constants(program) if isinstance(constant, jax.Array)]
    for array in arrays:
        if array.nbytes >= _LARGE:
            _LOG.debug(
                "%s takes an array of shape %s and dtype %s from around it (%.1f MB), as a constant of its program. "
                "HINT: pass it as an argument, or keep it in a jd.Variable.",
                name,
                array.shape,
                array.dtype,
                array.nbytes / 1e6,
            )
    for library, (kind, remedy) in _OWNERS.items():
        cls = getattr(sys.modules.get(library), kind, None)
        if cls is None:
            continue
        for owner, array in _held(arrays, cls):
            raise VariableError(
                f"{name} uses an array of shape {array.shape} and dtype {array.dtype} that a {type(owner).__name__} "
                f"of {library} holds, which it closes over: it would be a constant of the compiled program, and stay "
                f"as it is now. HINT: {remedy}."
            )


def _constants(program: Any) -> Iterator[Any]:
    """The constants of a jaxpr and of those inside its equations."""
    yield from getattr(program, "consts", ())
    for equation in program.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(inner, "eqns"):
                    yield from _constants(inner)


def _held(arrays: Sequence[jax.Array], kind: type[Any]) -> Iterator[tuple[Any, jax.Array]]:
    """The objects of a class that hold one of the arrays as an attribute, with the array."""
    # Integers may well be what they are for good, such as positions or shapes.
    arrays = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.inexact) or kind.__name__ == "Variable"]
    if not arrays:
        return
    holders = gc.get_referrers(*arrays)
    # An object's attributes may lie in a dictionary, which the object refers to.
    holders += gc.get_referrers(*[holder for holder in holders if type(holder) is dict])
    for holder in holders:
        if not issubclass(type(holder), kind):
            continue
        attributes = [*gc.get_referents(holder), *getattr(holder, "__dict__", {}).values()]
        found = next((array for array in arrays if _is_among(array, attributes)), None)
        if found is not None:
            yield holder, found


def _is_among(array: Any, values: Iterable[Any]) -> bool:
    return any(value is array for value in values)
