"""Numbers that users give, as arrays of the dtype that is wanted: what it cannot hold is refused, not cut off."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxtribute.errors import ArgumentError, ArgumentTypeError, VariableError
from jaxtribute.values.operators import ArrayOperators, operand

Host = np.ndarray[Any, Any]

_KINDS = (np.bool_, np.integer, np.floating, np.complexfloating)
"""Kinds of numbers, each of which holds those before it."""


def initial_array(value: Any, dtype: Any) -> Any:
    """The initial value of a variable as a strongly typed array on the host or a device.

    Args:
      value: an array, a number, a nest of numbers, or a function that returns one.
      dtype: the dtype that is wanted; None for that of the value, with JAX's rules for Python numbers.

    Raises:
      ArgumentTypeError: it holds no numbers.
      ArgumentError: it holds numbers that the dtype cannot hold.
      VariableError: it is computed inside a trace.
    """
    with jax.ensure_compile_time_eval():
        if callable(value) and not isinstance(value, ArrayOperators):
            value = value()
        value = operand(value)
        if isinstance(value, Tracer):
            raise VariableError(
                f"the initial value {value} is computed inside a trace and has no value yet. "
                "HINT: pass a function: jd.Variable(lambda: ...), or create the variable outside."
            )
        array = value if isinstance(value, jax.Array) else _host(value)
        if dtype is not None:
            return converted(array, known_dtype(dtype), "the initial value")
        if isinstance(value, (bool, int, float, complex)):
            return converted(array, jnp.result_type(value), "the initial value")
        return converted(array, jax.dtypes.canonicalize_dtype(array.dtype), "the initial value")


def known_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype that is meant, as JAX has it.

    Raises:
      ArgumentTypeError: nothing that names one.
    """
    try:
        known = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    except TypeError as error:
        raise ArgumentTypeError(f"dtype is {dtype!r}: {error}. HINT: pass a dtype, such as 'float32'.") from None
    if _kind(known) == len(_KINDS):
        raise ArgumentTypeError(f"dtype is {dtype!r}, which is none of numbers. HINT: pass one such as 'float32'.")
    return known


def converted(array: Any, dtype: np.dtype[Any], what: str) -> Any:
    """`array` with the dtype, of numbers that it can hold; floats are rounded to floats.

    Args:
      array: an array on the host or a device.
      dtype: the dtype that is wanted.
      what: names the array in messages.

    Raises:
      ArgumentError: an integer out of range, or a number of a kind that the dtype is not of.
    """
    if array.dtype == dtype:
        return array
    kind, wanted = _kind(array.dtype), _kind(dtype)
    if kind == wanted != 1 or kind < wanted:
        return array.astype(dtype)
    given = np.asarray(array)
    if kind == wanted:
        check_range(given, dtype, what)
        return array.astype(dtype)
    with np.errstate(invalid="ignore"):
        result = given.real.astype(dtype) if wanted < 3 else given.astype(dtype)
    if not np.array_equal(result.astype(given.dtype), given):
        raise ArgumentError(
            f"{what} of dtype {given.dtype} has numbers that {dtype} cannot hold: {_some(given)}. "
            f"HINT: leave the dtype out, or convert it yourself with astype('{dtype}')."
        )
    return result


def check_range(array: Host, dtype: np.dtype[Any], what: str) -> None:
    """Checks that integers fit a dtype of integers.

    Raises:
      ArgumentError: one does not.
    """
    worst = out_of_range(array, dtype)
    if worst is not None:
        raise ArgumentError(
            f"{what} of dtype {array.dtype} holds {worst}, which {dtype} cannot hold. HINT: use smaller numbers, or "
            "call jax.config.update('jax_enable_x64', True) first, which allows 64 bits."
        )


def out_of_range(array: Host, dtype: np.dtype[Any]) -> int | None:
    """An integer of `array` that `dtype` cannot hold; None if there is none, or if they are no integers."""
    if array.dtype.kind not in "iu" or not np.issubdtype(dtype, np.integer) or not array.size:
        return None
    if np.can_cast(array.dtype, dtype):
        return None
    limits = np.iinfo(dtype)
    least, most = int(array.min()), int(array.max())
    return least if least < limits.min else most if most > limits.max else None


def _host(value: Any) -> Host:
    """`value` on the host."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"the initial value {value!r} is no array: {error}. HINT: pass a number, an array or a nest of numbers."
        ) from None
    if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise ArgumentTypeError(
            f"the initial value {value!r} of type {type(value).__name__} holds no numbers. "
            "HINT: pass a number, an array or a nest of numbers; a number of more than 64 bits is none here."
        )
    return array


def _kind(dtype: Any) -> int:
    return next((place for place, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind)), len(_KINDS))


def _some(array: Host) -> str:
    return np.array2string(array.reshape(-1)[:5], separator=", ")
