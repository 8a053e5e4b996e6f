"""Arrays without values in JAX: it traces them as any other, and programs of them give arrays without values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

# `register_canonicalize_value_handler` and `pytype_aval_mappings` say what JAX takes as an array. A program that is not
# called within another one passes `_pjit_call_impl_python`; an operation alone too, as no fast call knows the class.
from jax._src import core, dtypes, pjit
from jax._src.interpreters import pxla
from jax._src.numpy import array_methods

from jaxtribute._src.core.jaxprs.core import ArrayImpl, constants

Outputs = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]]


def take_without_value(kind: type[Any], outputs: Outputs, nowhere: Callable[[Any], bool]) -> None:
    """Lets JAX compute with arrays of a class that have a shape, a dtype and a placement, and mostly no values.

    Args:
      kind: the class. Its `aval` is what JAX traces, its `number` the only value that an array may have, or None.
      outputs: makes the outputs of a program, of their avals, such inputs, and the wanted placements; nothing runs.
      nowhere: True of a placement on devices on which nothing runs.
    """
    run = pjit._pjit_call_impl_python  # pyright: ignore[reportPrivateUsage]

    def unless_valueless(*args: Any, jaxpr: Any, **params: Any) -> Any:
        # Random keys are arrays around arrays.
        inner = [getattr(value, "_base_array", value) for value in (*args, *constants(jaxpr))]
        described = [value for value in inner if isinstance(value, kind)]
        numbers = [value.number if isinstance(value, kind) and value.number is not None else value for value in args]
        known, places = sum(one is not other for one, other in zip(args, numbers, strict=True)), params["out_shardings"]
        # What is known of all that has no memory is computed, such as half of a learning rate.
        if len(described) == known and not any(map(nowhere, places)):
            return run(*numbers, jaxpr=jaxpr, **params)
        return outputs([variable.aval for variable in jaxpr.outvars], described, places), None, None, ()

    def put(arrays: Sequence[Any], *options: Any) -> Any:
        # Of known numbers; all others say that they have no values.
        values = [array.__array__() for array in arrays]
        return pxla.shard_arg_handlers[type(values[0])](values, *options)

    core.pytype_aval_mappings[kind] = lambda array: array.aval
    dtypes.register_canonicalize_value_handler(kind, None)
    pxla.shard_arg_handlers[kind] = put
    pjit._pjit_call_impl_python = unless_valueless  # pyright: ignore[reportPrivateUsage]


def methods_of_operations() -> Iterator[tuple[str, Any]]:
    """The methods and properties of JAX's arrays that are made of operations, such as `__add__`, `astype` and `T`."""
    for name, member in vars(jax.Array).items():
        code = getattr(getattr(member, "fget", member), "__code__", None)
        if code is not None and code.co_filename == array_methods.__file__:
            yield name, getattr(ArrayImpl, name)


def made_of(aval: Any, make: Callable[[tuple[int, ...], Any], Any]) -> Any:
    """An array of such a shape and dtype, by what makes those of numbers; random keys lie around their data."""
    if not jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return make(aval.shape, aval.dtype)
    data = jax.eval_shape(jax.random.key_data, aval)
    return jax.random.wrap_key_data(make(data.shape, data.dtype), impl=aval.dtype._impl.name)
