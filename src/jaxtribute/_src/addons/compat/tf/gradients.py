"""`tf.custom_gradient`: functions with a gradient of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp

from jaxtribute._src.addons.compat.tf.conversion import as_tensor
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import operand
from jaxtribute.typing import Array, Leaf

__all__ = ["custom_gradient"]


def custom_gradient(f: Callable[..., Any] | None = None) -> Any:
    """Gives a function the gradient that it returns beside its result: `return y, grad`, with `grad(dy)`.

    `grad` is given a gradient for each result, and returns one for each positional argument, None for none. The
    function is called once more for the gradient, so that it must compute the same then. Variables and tensors that it
    is to be differentiated by are arguments: JAX refuses those from around it.

    Raises:
      ArgumentError: the function returns no pair, or `grad` returns another number of gradients, or wants `variables`.

    Source: `tf.custom_gradient`.
    """
    if f is None:
        return custom_gradient
    function: Callable[..., Any] = f

    @wraps(function)
    def with_gradient(*args: Leaf, **kwargs: Leaf) -> Any:
        def pair(arrays: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
            found = function(*arrays, **kwargs)
            if not isinstance(found, (tuple, list)) or len(found) != 2 or not callable(found[1]):
                raise ArgumentError(
                    f"{function.__name__} of custom_gradient returns {found!r}. HINT: return its result and a function "
                    "of the result's gradient: y, grad."
                )
            result, gradient = found
            return jax.tree.map(as_tensor, result), gradient

        def forwards(*arrays: Array) -> tuple[Any, tuple[Array, ...]]:
            return pair(arrays)[0], arrays

        def backwards(arrays: tuple[Array, ...], given: Any) -> tuple[Any, ...]:
            gradient = pair(arrays)[1]
            if "variables" in signature(gradient).parameters:
                raise ArgumentError(
                    f"the gradient of {function.__name__} takes variables, which are no arguments here. HINT: make "
                    f"arguments of them, {function.__name__}(x, variable), and return a gradient for each."
                )
            return _of_arguments(function.__name__, arrays, gradient(*jax.tree.leaves(given)))

        result = jax.custom_vjp(lambda *arrays: pair(arrays)[0])
        result.defvjp(forwards, backwards)
        try:
            return result(*map(operand, args))
        except jax.errors.UnexpectedTracerError as error:
            error.add_note(
                f"HINT: what {function.__name__} is to be differentiated by are its arguments: pass variables and "
                f"tensors from around it, {function.__name__}(x, variable), and return a gradient for each."
            )
            raise

    return with_gradient


def _of_arguments(name: str, arrays: tuple[Array, ...], found: Any) -> tuple[Any, ...]:
    """A gradient for each argument, of its type; None where there is none."""
    gradients = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(gradients) != len(arrays):
        raise ArgumentError(
            f"the gradient of {name} returns {len(gradients)} gradient(s) for {len(arrays)} argument(s). HINT: return "
            "one for each positional argument, None for what has none."
        )
    return tuple(
        None
        if gradient is None or not jnp.issubdtype(jnp.result_type(array), jnp.inexact)
        else jnp.asarray(operand(gradient), jnp.result_type(array))
        for gradient, array in zip(gradients, arrays, strict=True)
    )
