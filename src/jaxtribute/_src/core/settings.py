"""Checks of settings where they are written, so that a wrong one does not go wrong later, or unnoticed."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex, TypeVar, cast, overload

from jaxtribute._src.core.environment import problems as problems
from jaxtribute._src.core.environment import reader as reader
from jaxtribute.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    import numpy as np

_Member = TypeVar("_Member", bound=Enum)
_Kind = TypeVar("_Kind")


def _is_bool(value: object) -> bool:
    # Whoever has a value of NumPy has imported it; the launcher, which starts in a moment, has not.
    numpy = cast("Any", sys.modules.get("numpy"))
    return isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_))


@overload
def whole(name: str, value: object, least: int = ...) -> int: ...
@overload
def whole(name: str, value: object, least: int = ..., *, optional: bool) -> int | None: ...
def whole(name: str, value: object, least: int = 0, *, optional: bool = False) -> int | None:
    """Returns a setting that counts something, as an int.

    Args:
      name: the setting's.
      value: an int, or a whole number of NumPy; no bool, and no float, whatever its value.
      least: the smallest number that makes sense.
      optional: whether it may be None.

    Raises:
      ArgumentTypeError: it is no whole number.
      ArgumentError: it is smaller.
    """
    if optional and value is None:
        return None
    # True counts as 1 for Python; as a setting it mostly is meant for the argument beside this one.
    if _is_bool(value) or not hasattr(value, "__index__") or getattr(value, "ndim", 0):
        raise ArgumentTypeError(
            f"{name} is {value!r} of type {type(value).__name__}. HINT: pass a whole number of at least {least}."
        )
    number = operator.index(cast("SupportsIndex", value))
    if number < least:
        raise ArgumentError(f"{name} is {value!r}. HINT: pass a whole number of at least {least}.")
    return number


def gather_axis(axis: object, rank: int) -> int:
    """Returns an axis along which arrays of a rank are gathered, as an int; an error if they do not have it."""
    number = operator.index(cast("SupportsIndex", axis)) if hasattr(axis, "__index__") else -1
    if not 0 <= number < rank:
        raise ArgumentError(
            f"cannot gather values of rank {rank} along axis {axis!r}. "
            "HINT: gather needs 0 <= axis < rank; give scalars an axis first, e.g. x[None]."
        )
    return number


@overload
def amount(name: str, value: object, *, above: bool = ...) -> float: ...
@overload
def amount(name: str, value: object, *, above: bool = ..., optional: bool) -> float | None: ...
def amount(name: str, value: object, *, above: bool = False, optional: bool = False) -> float | None:
    """Returns a setting that measures something, such as seconds, as a float.

    Args:
      name: the setting's.
      value: a number of at least 0; it may be infinite.
      above: whether 0 makes no sense.
      optional: whether it may be None.

    Raises:
      ArgumentTypeError: it is no real number.
      ArgumentError: it is negative or NaN, or 0 if that makes no sense.
    """
    if optional and value is None:
        return None
    least = "more than 0" if above else "at least 0"
    # True counts as 1 for Python, and an array of one element as its number: neither is meant.
    if _is_bool(value) or not hasattr(value, "__float__") or getattr(value, "ndim", 0):
        raise ArgumentTypeError(f"{name} is {value!r} of type {type(value).__name__}. HINT: pass a number, {least}.")
    number = float(cast("SupportsFloat", value))
    if math.isnan(number) or number < 0 or (above and not number):
        raise ArgumentError(f"{name} is {value!r}. HINT: pass a number, {least}.")
    return number


def member(name: str, value: object, kind: type[_Member]) -> _Member:
    """Returns the member of an enumeration that a setting means.

    Args:
      name: the setting's.
      value: the member, or its name in upper or lower case.
      kind: the enumeration.

    Raises:
      ArgumentError: a name that no member has.
      ArgumentTypeError: neither a member nor a string.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    names = ", ".join(f"{kind.__name__}.{member}" for member in kind.__members__)
    hint = f"HINT: pass one of {names}, or its name as a string."
    if isinstance(value, str):
        raise ArgumentError(f"{name} is {value!r}, which is no {kind.__name__}. {hint}")
    raise ArgumentTypeError(f"{name} is {value!r} of type {type(value).__name__}, which is no {kind.__name__}. {hint}")


def flag(name: str, value: object) -> bool:
    """Returns a setting that says yes or no: True or False, and nothing that only counts as one of them.

    Raises:
      ArgumentTypeError: it is something else.
    """
    if not _is_bool(value):
        raise ArgumentTypeError(f"{name} is {value!r} of type {type(value).__name__}. HINT: pass True or False.")
    return bool(value)


def function(name: str, value: _Kind, *, optional: bool = False) -> _Kind:
    """Returns a setting that is called, or None if that is allowed.

    Raises:
      ArgumentTypeError: it cannot be.
    """
    if not callable(value) and not (optional and value is None):
        raise ArgumentTypeError(f"{name} is {value!r} of type {type(value).__name__}. HINT: pass a function.")
    return value


def sequence(name: str, value: object) -> tuple[Any, ...]:
    """Returns a setting that lists something, as a tuple; an iterator is used up.

    Raises:
      ArgumentTypeError: it is a string, or cannot be iterated over.
    """
    # A string is a sequence of letters, which nobody means.
    if isinstance(value, (str, bytes)):
        raise ArgumentTypeError(f"{name} must be a list, not the string {value!r}. HINT: [{value!r}].")
    if not isinstance(value, Iterable):
        raise ArgumentTypeError(f"{name} is {value!r} of type {type(value).__name__}. HINT: pass a list.")
    return tuple(value)


@overload
def text(name: str, value: object) -> str: ...
@overload
def text(name: str, value: object, *, optional: bool) -> str | None: ...
def text(name: str, value: object, *, optional: bool = False) -> str | None:
    """Returns a setting that is a string, or None if that is allowed.

    Raises:
      ArgumentTypeError: it is none.
    """
    if optional and value is None:
        return None
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name} is {value!r} of type {type(value).__name__}. HINT: pass a string.")
    return value


def port(name: str, value: object) -> int:
    """Returns a setting that is the number of a port.

    Raises:
      ArgumentTypeError: it is no whole number.
      ArgumentError: no port has that number.
    """
    number = whole(name, value)
    if number > 65535:
        raise ArgumentError(f"{name} is {value!r}. HINT: pass the number of a port, from 0 to 65535.")
    return number


def check_range(array: np.ndarray[Any, Any], dtype: np.dtype[Any], what: str) -> None:
    """Checks that integers fit a dtype of integers.

    Args:
      array: the integers; of another kind of numbers nothing is said.
      dtype: the dtype.
      what: names the array in messages.

    Raises:
      ArgumentError: one does not.
    """
    worst = out_of_range(array, dtype)
    if worst is not None:
        raise ArgumentError(
            f"{what} of dtype {array.dtype} holds {worst}, which {dtype} cannot hold. HINT: use smaller numbers, or "
            "call jax.config.update('jax_enable_x64', True) first, which allows 64 bits."
        )


def out_of_range(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> int | None:
    """An integer of `array` that `dtype` cannot hold; None if there is none, or if they are no integers."""
    import numpy as np

    if array.dtype.kind not in "iu" or dtype.kind not in "iu" or not array.size or np.can_cast(array.dtype, dtype):
        return None
    limits = np.iinfo(dtype)
    # As Python's integers, which have no limits of their own to be compared within.
    least, most = int(array.min()), int(array.max())
    return least if least < limits.min else most if most > limits.max else None
