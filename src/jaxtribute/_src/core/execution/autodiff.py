"""Gradients with respect to variables: `jd.grad`, `jd.value_and_grad` and, of several losses, `jd.value_and_grads`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Literal, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core import points, settings
from jaxtribute._src.core.callers import caller, warn
from jaxtribute._src.core.context import Context, entered
from jaxtribute._src.core.execution.budgets import Budget, asked_for, checked, within_budget
from jaxtribute._src.core.execution.nests import flatten, is_array, variables_in
from jaxtribute._src.core.execution.overlay import Overlay, RowsNeeded
from jaxtribute._src.core.types import Function, K, Nest
from jaxtribute._src.core.values.operators import operand
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


@overload
def value_and_grad(
    fn: Callable[P, R], variables: Variable, *, has_aux: bool = False, memory: Budget = None
) -> Callable[P, tuple[R, jax.Array]]: ...
@overload
def value_and_grad(
    fn: Callable[P, R], variables: list[Variable], *, has_aux: bool = False, memory: Budget = None
) -> Callable[P, tuple[R, list[jax.Array]]]: ...
@overload
def value_and_grad(
    fn: Callable[P, R], variables: tuple[Variable, ...], *, has_aux: bool = False, memory: Budget = None
) -> Callable[P, tuple[R, tuple[jax.Array, ...]]]: ...
@overload
def value_and_grad(
    fn: Callable[P, R], variables: Mapping[K, Variable], *, has_aux: bool = False, memory: Budget = None
) -> Callable[P, tuple[R, dict[K, jax.Array]]]: ...
@overload
def value_and_grad(
    fn: Callable[P, R], variables: Any, *, has_aux: bool = False, memory: Budget = None, unconnected_gradients: str = ""
) -> Callable[P, tuple[R, Any]]: ...
def value_and_grad(
    fn: Function, variables: Any, *, has_aux: bool = False, memory: Budget = None, unconnected_gradients: str = "zero"
) -> Function:
    """Returns a function that gives `fn`'s value and its gradient with respect to variables.

    In a replica function both are the replica's own: reduce the gradient with `ctx.all_reduce` or leave it to
    `jd.Optimizer`. Variables that `fn` writes (statistics, counters) keep what it wrote.

    Args:
      fn: a function of any arguments that returns a scalar, or `(scalar, aux)` with `has_aux`.
      variables: a variable or a nest of them, of inexact dtypes; a `jd.Model` stands for its
        parameters. Keras's variables of a strategy, too.
      has_aux: whether `fn` returns auxiliary data besides.
      memory: how much the backward pass may keep of the forward pass on each replica: bytes, or a text such as
        `"12GiB"`; `"auto"` is what the device has besides variables; None is the default of
        `jd.config.set_memory_budget`, or all. In compiled functions, what goes beyond it is computed again, at the
        least time; nothing that meets other replicas or has effects is. The gradient is that of `jax.checkpoint`
        around the same operations. Code that runs eagerly keeps all.
      unconnected_gradients: "zero", as JAX has it, or "none", as TensorFlow's tape, which adds up a loss's elements:
        None for a variable that is not trainable, is of integers, or that the loss does not depend on (eagerly: that
        `fn` does not read). Optimizers of Keras leave it alone then.

    Returns:
      A function of `fn`'s arguments that returns `(value, gradients)`, or `((value, aux), gradients)`;
      `gradients` is a nest as `variables`, each array of its variable's shape and dtype.

    Raises:
      ArgumentError: there are no variables, or the loss cannot be computed within `memory`.
      ArgumentTypeError: something in `variables` is no `jd.Variable`.
      ShapeError: the loss is not a scalar.

    Examples:
      >>> w = jd.Variable([1.0, 2.0])
      >>> value, (gradient,) = jd.value_and_grad(lambda x: jnp.sum(w * x), [w])(jnp.float32(3))
      >>> float(value), gradient
      (9.0, Array([3., 3.], dtype=float32))

    Source: `tf.GradientTape`, as `jax.value_and_grad`.
    """
    both = _differentiated(fn, variables, has_aux, memory=memory, unconnected=unconnected_gradients)

    def value_and_gradients(*args: Nest, **kwargs: Nest) -> Any:
        value, grads = both(*args, **kwargs)
        contexts.current().executor.queue_loss(value[0] if has_aux else value)
        return value, grads

    return value_and_gradients


def value_and_grads(
    fn: Callable[P, Any], variables: Sequence[Any], *, has_aux: bool = False, unconnected_gradients: str = "zero"
) -> Callable[P, tuple[Any, Any]]:
    """Returns a function that gives several losses of one computation, and the gradient of each.

    `fn` runs once: what it draws, counts and writes, all losses share. As a tape does, it adds up the elements of a
    loss that is not a scalar. Otherwise it is as `value_and_grad`.

    Args:
      fn: a function of any arguments that returns a tuple of losses, or `(losses, aux)` with `has_aux`.
      variables: for each loss a variable or a nest of them.
      has_aux: whether `fn` returns auxiliary data besides.
      unconnected_gradients: as for `value_and_grad`.

    Returns:
      A function of `fn`'s arguments that returns `(losses, gradients)`, or `((losses, aux), gradients)`; `gradients`
      is a tuple with a nest for each loss.

    Raises:
      ArgumentError: there are no variables, or not as many nests as losses.
      ArgumentTypeError: something in `variables` is no `jd.Variable`.

    Examples:
      >>> v, w = jd.Variable(2.0), jd.Variable(3.0)
      >>> _, (dv, dw) = jd.value_and_grads(lambda: (v * w, v * w * w), (v, [w]))()
      >>> float(dv), float(dw[0])
      (3.0, 12.0)

    Source: a `tf.GradientTape` for each loss around the same lines.
    """
    if not isinstance(variables, (list, tuple)):
        raise ArgumentTypeError(
            f"variables is a {type(variables).__name__}. HINT: pass a tuple with a nest of variables for each loss."
        )
    both = _differentiated(fn, tuple(variables), has_aux, several=True, unconnected=unconnected_gradients)

    def values_and_gradients(*args: Nest, **kwargs: Nest) -> Any:
        value, grads = both(*args, **kwargs)
        for loss in jax.tree.leaves(value[0] if has_aux else value):
            contexts.current().executor.queue_loss(loss)
        return value, grads

    return values_and_gradients


def _differentiated(
    fn: Function, variables: Any, has_aux: bool, several: bool = False, memory: Budget = None, unconnected: str = "zero"
) -> Function:
    nests = [_checked(nest) for nest in (variables if several else (variables,))]
    settings.function("fn", fn)
    settings.flag("has_aux", has_aux)
    memory = checked(memory)
    leaves, differentiate, of_traced = _chosen(nests, several, unconnected)

    def differentiated(*args: Nest, **kwargs: Nest) -> Any:
        context = contexts.current()
        executor = context.executor
        seen, as_replica = executor.standpoint, context.replica is not None
        derivable = {leaf: seen.derivable(executor, leaf, as_replica) for leaf in leaves}
        by_rows = any(map(attrgetter("policy.by_rows"), leaves))
        as_tape = of_traced is not differentiate
        regathers = executor.local and executor.traced and any(map(attrgetter("policy.regathers"), leaves))
        # What runs as Python gives up its values one by one, as it always does.
        asked = asked_for(memory) if executor.traced else None
        as_arrays = regathers or asked is not None
        written, unread, outline = list[Variable](), set[Variable](), list[Any]()

        def loss(values: Sequence[Any]) -> Any:
            made = {leaf: make(value) for (leaf, (_, make)), value in zip(derivable.items(), values, strict=True)}
            result = under(overlay := Overlay(executor, made))
            unread.update(overlay.unread)
            if len(unread) == len(leaves) and not as_tape:
                told = "reads none of its variables: gradients of zero. HINT: read them in it, as model.value"
                warn(f"{caller()}: a loss {told}; what was read before is a constant.")
            return result

        def under(overlay: Overlay) -> Any:
            with entered(Context(context.strategy, context.replica, overlay)):
                value, aux = fn(*args, **kwargs) if has_aux else (fn(*args, **kwargs), None)
                value = jax.tree.map(operand, value, is_leaf=lambda leaf: isinstance(leaf, Variable))
            written[:] = overlay.written
            if getattr(value, "shape", ()) and not several and not as_tape:
                raise ShapeError(
                    f"the loss has shape {value.shape}, and is no scalar. HINT: return its mean or its sum. As a tape, "
                    "(loss,), (grads,) = jd.value_and_grads(lambda: (fn(),), (variables,))() adds up the elements."
                )
            if as_arrays:  # a checkpointed function returns arrays only
                aux, outline[:] = _arrays(aux)
            return value, (aux, list(overlay.written.values()))

        gradients = of_traced if executor.traced else differentiate
        if regathers:
            from jaxtribute._src.core.execution.regathering import regathering  # most programs never need it

            gradients = partial(regathering, gradients)
        within = (lambda loss: loss) if asked is None else partial(within_budget, memory=asked, gathers=regathers)
        try:
            if by_rows:
                raise RowsNeeded
            (value, (aux, writes)), grads = gradients(within(loss), [value for value, _ in derivable.values()])
        except RowsNeeded:
            from jaxtribute._src.core.execution.row_gradients import differentiate_by_rows

            (value, (aux, writes)), grads = differentiate_by_rows(
                lambda loss, at: gradients(within(loss), at), under, executor, derivable
            )
        for variable, new in zip(written, writes, strict=True):
            executor.set(variable, new)
        results: list[Any] = []
        for (own, tree), gradient in zip(nests, grads, strict=True):
            known = (pair for pair in zip(leaves, gradient, strict=True) if pair[1] is not None)
            of = {leaf: seen.gradient(grad, leaf) for leaf, grad in known if not (as_tape and leaf in unread)}
            results.append(tree.unflatten(list(map(of.get, own))))
        aux = _filled(aux, outline) if as_arrays else aux
        return ((value, aux) if has_aux else value), tuple(results) if several else results[0]

    return differentiated


def _chosen(
    nests: Sequence[tuple[Sequence[Variable], Any]], several: bool, unconnected: str
) -> tuple[list[Variable], Function, Function]:
    """The variables to differentiate by, and how in eager and in traced code."""
    # A variable may be in several nests, or several times in one.
    leaves = list(dict.fromkeys(itertools.chain.from_iterable(map(itemgetter(0), nests))))
    if not leaves:
        raise ArgumentError("variables is an empty tuple: no losses. HINT: pass a nest of variables for each loss.")
    differentiate = partial(_of_each, len(nests)) if several else _of_one
    if unconnected == "zero":
        return leaves, differentiate, differentiate
    return points.TAPES.last()(unconnected, leaves, len(nests) if several else None, differentiate)


@overload
def grad(
    fn: Callable[P, Any], variables: Variable, *, has_aux: Literal[False] = False, memory: Budget = None
) -> Callable[P, jax.Array]: ...
@overload
def grad(
    fn: Callable[P, Any], variables: list[Variable], *, has_aux: Literal[False] = False, memory: Budget = None
) -> Callable[P, list[jax.Array]]: ...
@overload
def grad(
    fn: Callable[P, Any], variables: tuple[Variable, ...], *, has_aux: Literal[False] = False, memory: Budget = None
) -> Callable[P, tuple[jax.Array, ...]]: ...
@overload
def grad(
    fn: Callable[P, Any], variables: Mapping[K, Variable], *, has_aux: Literal[False] = False, memory: Budget = None
) -> Callable[P, dict[K, jax.Array]]: ...
@overload
def grad(
    fn: Callable[P, tuple[Any, A]], variables: Any, *, has_aux: Literal[True], memory: Budget = None
) -> Callable[P, tuple[Any, A]]: ...
@overload
def grad(fn: Callable[P, Any], variables: Any, *, has_aux: bool = False, memory: Budget = None) -> Callable[P, Any]: ...
def grad(fn: Function, variables: Any, *, has_aux: bool = False, memory: Budget = None) -> Function:
    """Returns a function that gives `fn`'s gradient with respect to variables; see `value_and_grad`.

    Returns:
      A function of `fn`'s arguments that returns the gradients, or `(gradients, aux)` with `has_aux`.

    Examples:
      >>> w = jd.Variable(3.0)
      >>> jd.grad(lambda: w * w, w)()
      Array(6., dtype=float32)

    Source: `tf.GradientTape`, as `jax.grad`.
    """
    both = _differentiated(fn, variables, has_aux, memory=memory)

    def gradients(*args: Nest, **kwargs: Nest) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradients


def _checked(variables: Any) -> tuple[Sequence[Variable], Any]:
    """The variables of a nest, and its structure."""
    leaves, tree = variables_in(variables)
    if not leaves:
        raise ArgumentError(
            f"variables is {variables!r}, which holds none. HINT: a Keras model has none before it is built: begin it "
            "with a keras.Input, or call it once, model(zeros), first."
        )
    for leaf in leaves:
        if not isinstance(leaf, Variable):
            raise ArgumentTypeError(
                f"variables holds a {type(leaf).__name__}, not a jd.Variable. "
                "HINT: for plain arrays use jax.value_and_grad on a function that takes them as arguments."
            )
    return leaves, tree


def _of_one(loss: Function, values: Any) -> Any:
    """The loss, what else its function gives, and a list of its gradients alone."""
    value, grads = jax.value_and_grad(loss, has_aux=True)(values)
    return value, [grads]


def _of_each(number: int, loss: Function, values: Any) -> Any:
    """The losses, what else their function gives, and the gradients of each."""
    losses, pull, aux = jax.vjp(loss, values, has_aux=True)
    if not isinstance(losses, tuple) or len(losses) != number:
        returned = len(losses) if isinstance(losses, tuple) else f"a {type(losses).__name__}"
        raise ArgumentError(
            f"the function returns {returned} for {number} nests of variables. HINT: return a tuple of losses, one for "
            "each nest, or (losses, aux) with has_aux=True."
        )
    ones, zeros = (jax.tree.map(like, losses) for like in (jnp.ones_like, jnp.zeros_like))
    grads = [pull((*zeros[:place], ones[place], *zeros[place + 1 :]))[0] for place in range(number)]
    return (losses, aux), grads


def _arrays(nest: Nest) -> tuple[list[Any], list[Any]]:
    """The arrays of a nest, and the nest with None in their places, to be filled in by `_filled`."""
    leaves, tree = flatten(nest)
    arrays: list[Any] = []
    for place, leaf in enumerate(leaves):
        if is_array(leaf):
            arrays.append(leaf)
            leaves[place] = None
    return arrays, [leaves, tree]


def _filled(arrays: Sequence[Any], outline: Sequence[Any]) -> Any:
    leaves, tree = outline
    rest = iter(arrays)
    return tree.unflatten([next(rest) if leaf is None else leaf for leaf in leaves])
