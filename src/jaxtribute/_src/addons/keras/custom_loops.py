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

from jaxtribute import ReduceOp, ReplicaContext
from jaxtribute._src.addons.keras import share
from jaxtribute._src.addons.keras.internals import KerasOptimizer, KerasVariable, in_stateless_scope
from jaxtribute.extending import Context
from jaxtribute.typing import Array, Leaf, Nest


class _Applying(threading.local):
    """True if an optimizer applies gradients that are summed already."""

    active = False


_applying = _Applying()


def own_replica() -> ReplicaContext | None:
    """The replica whose function, one of the user's, runs; None in a step of `fit`, and with one replica."""
    replica = Context.current().replica
    if replica is None or replica.num_replicas_in_sync == 1 or share.current() is not None:
        return None
    return replica


def together(variable: KerasVariable, value: Array) -> Any:
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
    if not optimizer.built and trainable_variables is not None:  # once for all replicas
        trainable_variables = list(trainable_variables)
        replica.merge_call(lambda _: optimizer.build(trainable_variables))
    # None, for a weight that the loss does not use, is no leaf and stays where it is.
    grads = replica.all_reduce(ReduceOp.SUM, list(grads))
    with _summed():
        return original(optimizer, grads, trainable_variables)


def initialized_now(original: Callable[..., Any], variable: KerasVariable, initializer: Callable[..., Any]) -> None:
    """Gives a Keras variable its first value, computed at once also if a model is built in a traced function."""

    @functools.wraps(initializer)
    def now(*args: Leaf, **kwargs: Leaf) -> Any:
        # A tracer kept by a layer would outlive its trace, and the next call would fail on it.
        with jax.ensure_compile_time_eval():
            return initializer(*args, **kwargs)

    original(variable, now)


@contextmanager
def _summed() -> Generator[None]:
    _applying.active = True
    try:
        yield
    finally:
        _applying.active = False
