"""Numbers that users give, as arrays of the dtype that is wanted: what it cannot hold is refused, not cut off."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.core import settings
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.types import DType, Numeric
from jaxtribute._src.core.values.operators import ArrayOperators, operand
from jaxtribute.errors import ArgumentError, ArgumentTypeError, VariableError

Host = np.ndarray[Any, Any]

_KINDS = (np.bool_, np.integer, np.floating, np.complexfloating)
"""Kinds of numbers, each of which holds those before it."""
_LONG = (np.dtype(np.int64), np.dtype(np.uint64))


def initial_array(value: Numeric, dtype: DType) -> Any:
    """The initial value of a variable as a strongly typed array on the host or a device.

    Args:
      value: an array, a number, a nest of numbers, or a function that returns one.
      dtype: the dtype that is wanted; None for that of the value, with JAX's rules for Python numbers.

    Raises:
      ArgumentTypeError: it holds no numbers.
      ArgumentError: it holds numbers that the dtype cannot hold.
      VariableError: it is computed inside a trace.
    """
    # A variable may be made while a program is traced: its first value is computed now all the same.
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
        check_numbers(array.dtype, "the initial value")
        if dtype is not None:
            return converted(array, known_dtype(dtype), "the initial value")
        # As JAX takes numbers of Python: 32 bits unless 64 are switched on.
        if isinstance(value, (bool, int, float, complex)):
            return converted(array, jnp.result_type(value), "the initial value")
        return converted(array, jax.dtypes.canonicalize_dtype(array.dtype), "the initial value")


def initial_shape(value: Numeric, dtype: DType) -> Any:
    """The initial value of a variable as `initial_array` has it, or its shape alone where a function returns it.

    Args:
      value: as for `initial_array`, or a `jax.ShapeDtypeStruct`.
      dtype: the dtype that is wanted; None for that of the value.
    """
    shape = value
    if callable(value) and not isinstance(value, ArrayOperators):
        try:
            shape = jax.eval_shape(value)
        except Exception:  # noqa: BLE001  # a function that wants to see numbers is called
            shape = None
    if not isinstance(shape, jax.ShapeDtypeStruct):
        return initial_array(value, dtype)
    check_numbers(shape.dtype, "the initial value")
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype if dtype is None else known_dtype(dtype))


def check_numbers(dtype: DType, what: str) -> None:
    """Refuses the dtypes of random keys, which are no numbers.

    Raises:
      ArgumentTypeError: it is one.
    """
    if not isinstance(dtype, (str, type)) and jnp.issubdtype(getattr(dtype, "dtype", dtype), jax.dtypes.prng_key):
        raise ArgumentTypeError(
            f"{what} is of {dtype}, a random key, and variables hold numbers. HINT: keep jax.random.key_data(key), and "
            "use jax.random.wrap_key_data(variable.read_value())."
        )


def known_dtype(dtype: DType) -> np.dtype[Any]:
    """The dtype that is meant, as JAX has it.

    Raises:
      ArgumentTypeError: nothing that names one.
    """
    check_numbers(dtype, "dtype")
    try:
        known = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    except TypeError as error:
        raise ArgumentTypeError(f"dtype is {dtype!r}: {error}. HINT: pass a dtype, such as 'float32'.") from None
    if _kind(known) == len(_KINDS):
        raise ArgumentTypeError(f"dtype is {dtype!r}, which is none of numbers. HINT: pass one such as 'float32'.")
    return known


def converted(array: Numeric, dtype: np.dtype[Any], what: str) -> Any:
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
    # Each kind holds those before it, and floats are rounded to floats. Of one kind only integers (1) may not fit each
    # other.
    if kind == wanted != 1 or kind < wanted:
        return array.astype(dtype)
    host = np.asarray(array)
    if kind == wanted:
        settings.check_range(host, dtype, what)
        return array.astype(dtype)
    # What does not fit becomes something else here, without a warning; that it does the comparison below tells.
    with np.errstate(invalid="ignore"):
        result = host.real.astype(dtype) if wanted < 3 else host.astype(dtype)
    if not np.array_equal(result.astype(host.dtype), host):
        some = np.array2string(host.reshape(-1)[:5], separator=", ")
        raise ArgumentError(
            f"{what} of dtype {host.dtype} has numbers that {dtype} cannot hold: {some}. "
            f"HINT: leave the dtype out, or convert it yourself with astype('{dtype}')."
        )
    return result


def widened(array: Any) -> Any:
    """An array of floats of less than 32 bits as one of 32, in which they are added up; any other as it is."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    return array.astype(np.promote_types(array.dtype, np.float32))


def summed(array: Any, axes: int | tuple[int, ...]) -> Any:
    """The sum along axes in the array's dtype, added up in 32 bits if that is shorter."""
    # Rounded after each addition, the sum would depend on the order that the compiler takes.
    return widened(array).sum(axes, promote_integers=False).astype(array.dtype)


def check_cut(array: Numeric, what: str) -> None:
    """Checks that JAX, which has no 64 bits unless it is told to, does not cut an array's integers off.

    Raises:
      ArgumentError: it would.
    """
    if array.dtype in _LONG and not jax.config.read("jax_enable_x64"):
        settings.check_range(np.asarray(array), jax.dtypes.canonicalize_dtype(array.dtype), what)


def row_ids(ids: Numeric, rows: int, what: str) -> Any:
    """The ids of rows, of which those that are negative or too large name none.

    Args:
      ids: an array of integers. If its values are known, it must name rows; in a trace those that do not become
        `rows`, which `jnp.take` fills with NaN (integers with their smallest) and scattered writes ignore.
      rows: how many rows there are.
      what: names whose rows they are.

    Raises:
      ArgumentError: an id that is known names no row.
    """
    # Parts that other workers hold cannot be looked at here.
    if isinstance(ids, Tracer) or (
        isinstance(ids, jax.Array) and not (ids.is_fully_addressable or ids.is_fully_replicated)
    ):
        # The number of rows, which stands for none, need not fit into less than 32 bits. JAX cuts longer ids to 32.
        least = np.int32 if jnp.issubdtype(ids.dtype, jnp.signedinteger) else np.uint32
        wide = jnp.asarray(ids, np.promote_types(ids.dtype, least))
        none = jnp.full_like(wide, rows)
        return jnp.where((wide < jnp.zeros_like(wide)) | (wide > none), none, wide)
    host = np.asarray(ids)
    wrong = host[(host < 0) | (host >= rows)]
    if wrong.size:
        raise ArgumentError(
            f"there is no row {wrong.reshape(-1)[0]} in {what}, which has {rows}. "
            "HINT: ids are counted from 0, and none is negative."
        )
    return host if isinstance(ids, (list, tuple)) else ids


def _host(value: Numeric) -> Host:
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


def _kind(dtype: DType) -> int:
    return next((place for place, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind)), len(_KINDS))
