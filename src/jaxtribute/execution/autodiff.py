"""Gradients with respect to variables: `jd.grad` and `jd.value_and_grad`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxtribute import context as contexts
from jaxtribute.context import Context, entered
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.execution.frames import OverlayFrame
from jaxtribute.values.variable import Variable


def value_and_grad(fn: Callable[..., Any], variables: Any, *, has_aux: bool = False) -> Callable[..., Any]:
    """Returns a function that gives `fn`'s value and its gradient with respect to variables.

    In a replica function both are the replica's own: reduce the gradient with `ctx.all_reduce` or leave it to
    `jd.Optimizer`. Variables that `fn` writes (statistics, counters) keep what it wrote.

    Args:
      fn: a function of any arguments that returns a scalar, or `(scalar, aux)` with `has_aux`.
      variables: a variable or a nest of them, of inexact dtypes.
      has_aux: whether `fn` returns auxiliary data besides.

    Returns:
      A function of `fn`'s arguments that returns `(value, gradients)`, or `((value, aux), gradients)`;
      `gradients` is a nest as `variables`, each array of its variable's shape and dtype.

    Raises:
      ArgumentTypeError: something in `variables` is no `jd.Variable`.

    Source: `tf.GradientTape`, as `jax.value_and_grad`.
    """
    leaves, tree = jax.tree.flatten(variables, is_leaf=lambda leaf: isinstance(leaf, Variable))
    for leaf in leaves:
        if not isinstance(leaf, Variable):
            raise ArgumentTypeError(
                f"variables holds a {type(leaf).__name__}, not a jd.Variable. "
                "HINT: for plain arrays use jax.value_and_grad on a function that takes them as arguments."
            )

    def differentiated(*args: Any, **kwargs: Any) -> Any:
        context = contexts.current()
        frame = context.frame
        written: list[Variable] = []

        def loss(values: list[Any]) -> Any:
            overlay = OverlayFrame(frame, dict(zip(leaves, values, strict=True)))
            with entered(Context(context.strategy, context.replica, overlay)):
                result = fn(*args, **kwargs)
            written[:] = overlay.written
            value, aux = result if has_aux else (result, None)
            return value, (aux, list(overlay.written.values()))

        values = [frame.get(leaf) for leaf in leaves]
        (value, (aux, writes)), grads = jax.value_and_grad(loss, has_aux=True)(values)
        for variable, new in zip(written, writes, strict=True):
            frame.set(variable, new)
        whole = [leaf.policy.gradient(leaf, grad, context) for leaf, grad in zip(leaves, grads, strict=True)]
        return ((value, aux) if has_aux else value), tree.unflatten(whole)

    return differentiated


def grad(fn: Callable[..., Any], variables: Any, *, has_aux: bool = False) -> Callable[..., Any]:
    """Returns a function that gives `fn`'s gradient with respect to variables; see `value_and_grad`.

    Returns:
      A function of `fn`'s arguments that returns the gradients, or `(gradients, aux)` with `has_aux`.

    Source: `tf.GradientTape`, as `jax.grad`.
    """
    both = value_and_grad(fn, variables, has_aux=has_aux)

    def gradients(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradients
