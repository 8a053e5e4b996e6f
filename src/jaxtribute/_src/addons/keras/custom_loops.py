"""Keras in a replica function of one's own: what replicas write, and gradients summed before an optimizer applies them.

`fit` brings a step's results together by itself, outside of replica functions; see `steps`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import DistributedValues, ReduceOp, ReplicaContext, Strategy, Variable
from jaxtribute._src.addons.keras import share
from jaxtribute._src.addons.keras.internals import (
    KerasOptimizer,
    KerasVariable,
    in_stateless_scope,
    updated_by,
)
from jaxtribute._src.addons.keras.overwriting import largest, put_back, set_apart
from jaxtribute._src.addons.keras.rows import change_p
from jaxtribute.errors import ArgumentError, VariableError
from jaxtribute.extending import Context, InReplica, seen_from
from jaxtribute.typing import Array, Leaf, Nest


class _Alike(InReplica):
    """A replica that writes what all write: that they do is checked in the program."""

    def given(self, executor: Any, variable: Variable, value: Leaf, update: Any, as_replica: bool) -> Any:
        return jnp.asarray(value, variable.dtype)


class _Applying(threading.local):
    """The state of the optimizer of this thread.

    Attributes:
      active: it applies gradients, and their sum has been taken care of.
      reduced: the program says that it has reduced them itself.
      seen: gets the gradients that are to be summed, if somebody looks at the step.
    """

    active = reduced = False
    seen: list[list[Any]] | None = None


_applying = _Applying()


def own_replica() -> ReplicaContext | None:
    """The replica whose function, one of the user's, runs; None in a step of `fit`, and with one replica."""
    replica = Context.current().replica
    if replica is None or replica.num_replicas_in_sync == 1 or share.current() is not None:
        return None
    return replica


def write(variable: KerasVariable, value: Array) -> None:
    """Writes what a replica, or all code, makes of a Keras variable's value.

    Raises:
      VariableError: (when the program ends) gradients that a program is said to have reduced differ.
    """
    executor = Context.current().executor
    if _applying.reduced and executor.traced and own_replica() is not None:
        executor.standpoint.store(executor, variable.stored, value)  # that all write alike is checked in the program
    else:
        variable.stored.assign(_together(variable, value))


def _together(variable: KerasVariable, value: Array) -> Any:
    """Writes once for all replicas, by Keras's rules.

    Args:
      variable: a Keras variable, whose value is the same on all replicas.
      value: what this replica writes.
    """
    replica = own_replica()
    if replica is None:
        return value
    # Each replica starts from the same sum: adding up what they have added counts every example once.
    if variable.aggregation == "sum":  # metrics: what each replica adds
        old = variable.stored.read_value()
        return old + replica.all_reduce(ReduceOp.SUM, value - old, share.EXACT)
    averaged = variable.aggregation == "mean" or (variable.aggregation == "none" and not variable.trainable)
    if averaged and jnp.issubdtype(variable.stored.dtype, jnp.inexact):  # moving averages
        return replica.all_reduce(ReduceOp.MEAN, value, share.EXACT)
    return value  # weights and slots, which summed gradients keep alike


def summed_gradients(
    original: Callable[..., Any], optimizer: KerasOptimizer, grads: Nest, trainable_variables: Nest = None
) -> Any:
    """An optimizer's `apply`, which in a replica function sums the gradients over the replicas first."""
    replica = own_replica()
    if replica is None or _applying.active or in_stateless_scope():
        return original(optimizer, grads, trainable_variables)
    trainable_variables = trainable_variables if trainable_variables is None else list(trainable_variables)
    if not optimizer.built and trainable_variables is not None:  # once for all replicas
        replica.merge_call(lambda _: optimizer.build(trainable_variables))
    # None, for a weight that the loss does not use, is no leaf and stays where it is.
    grads = list(grads)
    known = updated_by(optimizer) if trainable_variables is None else trainable_variables
    apart, values = set_apart(grads, known)
    if not _applying.reduced:
        grads = apart
        if _applying.seen is not None:
            _applying.seen.append(jax.tree.leaves(grads))
        values = largest(replica, values)
    elif values and replica.num_replicas_in_sync > 1:
        first = known[min(values)].path
        raise VariableError(
            f"the gradient of {first} is its new value (overwrite_with_gradient), which a sum over replicas changes. "
            "HINT: give apply_gradients each replica's own gradients, which it reduces."
        )
    elif not Context.current().executor.traced:
        replica.merge_call(_check_alike, (grads,))
    with _set("active"):
        if any(isinstance(variable, Variable) for variable in known):
            if _applying.reduced and Context.current().executor.traced:
                with seen_from(Context.current().executor, _Alike()):
                    return original(optimizer, grads, trainable_variables)
            return replica.merge_call(_applied_once, (grads, values, optimizer, original, trainable_variables))
        grads = grads if _applying.reduced else replica.all_reduce(ReduceOp.SUM, grads)
        grads = grads if _applying.seen is None else jax.tree.map(change_p.bind, grads)
        return original(optimizer, put_back(grads, values), trainable_variables)


def _applied_once(
    strategy: Strategy,
    grads: Nest,
    values: Nest,
    optimizer: KerasOptimizer,
    original: Callable[..., Any],
    variables: Nest,
) -> Any:
    """Updates a strategy's own variables: in replicas each would write, and their aggregation is for the program's."""
    op = ReduceOp.MEAN if _applying.reduced else ReduceOp.SUM
    grads, values = strategy.reduce(op, grads, axis=None), strategy.reduce(ReduceOp.MEAN, values, axis=None)
    return original(optimizer, put_back(grads, values), variables)


@contextmanager
def gradients_seen() -> Generator[list[list[Any]]]:
    """Collects the gradients of each update within the block, before they are summed over the replicas."""
    _applying.seen = seen = []
    try:
        yield seen
    finally:
        _applying.seen = None


def _check_alike(strategy: Strategy, grads: Nest) -> None:
    for grad in jax.tree.leaves(grads, is_leaf=lambda leaf: isinstance(leaf, DistributedValues)):
        first, *others = map(np.asarray, strategy.experimental_local_results(grad))
        if not all(np.array_equal(first, other, equal_nan=True) for other in others):
            raise VariableError(
                f"a gradient of shape {first.shape} has a different value on each of {len(others) + 1} replicas, and "
                "was given as reduced. HINT: reduce it with ctx.all_reduce, or let apply_gradients do that."
            )


def given_gradients(
    original: Callable[..., Any],
    optimizer: KerasOptimizer,
    grads_and_vars: Nest,
    *,
    reduce_op: Any = ReduceOp.SUM,
    skip_gradients_aggregation: bool = False,
    experimental_aggregate_gradients: bool = True,
) -> Any:
    """An optimizer's `apply_gradients`, with the words by which TensorFlow's programs say that gradients are reduced.

    Raises:
      ArgumentError: another reduction than a sum.
    """
    if reduce_op is not None and ReduceOp.parse(reduce_op) is not ReduceOp.SUM:
        raise ArgumentError(
            f"reduce_op is {reduce_op!r}. HINT: optimizers of Keras sum gradients; pass None for reduced gradients."
        )
    if reduce_op is not None and experimental_aggregate_gradients and not skip_gradients_aggregation:
        return original(optimizer, grads_and_vars)
    with _set("reduced"):
        return original(optimizer, grads_and_vars)


def initialized_now(original: Callable[..., Any], variable: KerasVariable, initializer: Callable[..., Any]) -> None:
    """Gives a Keras variable its first value, computed at once also if a model is built in a traced function."""

    @functools.wraps(initializer)
    def now(*args: Leaf, **kwargs: Leaf) -> Any:
        # A tracer kept by a layer would outlive its trace, and the next call would fail on it.
        with jax.ensure_compile_time_eval():
            return initializer(*args, **kwargs)

    original(variable, now)


@contextmanager
def _set(name: str) -> Generator[None]:
    setattr(_applying, name, True)
    try:
        yield
    finally:
        setattr(_applying, name, False)
