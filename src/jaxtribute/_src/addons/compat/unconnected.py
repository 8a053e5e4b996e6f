"""Gradients of variables that a loss does not depend on: None, as TensorFlow's tape gives them; registered at a point.

JAX gives zeros, with which a momentum goes on moving a variable. Here it is looked at what a gradient is computed from.

A replica without rows may compute nothing from a variable, as a look-up of no numbers is: it answers as the replicas
with rows have, which run before it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jaxtribute import Variable, get_replica_context
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import Callers, Programs, points
from jaxtribute.typing import Function


def of_tape(
    unconnected: str, variables: Sequence[Variable], count: int | None, each: Function
) -> tuple[list[Variable], Function, Function]:
    """The variables that a tape watches, and how losses are differentiated by them in eager and in traced code.

    Args:
      unconnected: the gradient of others.
      variables: those that are asked for.
      count: of losses; None for one that is not in a tuple.
      each: differentiates losses in a tuple, in eager code.

    Raises:
      ArgumentError: `unconnected` is not "none".
    """
    if unconnected != "none":
        raise ArgumentError(f"unconnected_gradients is {unconnected!r}. HINT: pass 'zero' or 'none'.")
    watched = [each for each in variables if each.trainable and jnp.issubdtype(each.dtype, jnp.inexact)]
    known = _KNOWN.setdefault(watched[0], {}) if watched else {}
    return watched, _added_up if count is None else each, partial(differentiate, count, known)


_Known: TypeAlias = dict[Any, list[list[bool]]]
_KNOWN: weakref.WeakKeyDictionary[Variable, _Known] = weakref.WeakKeyDictionary()
"""By the first of a tape's variables, and the line of the program: which gradients were computed, for each loss."""


def _added_up(loss: Function, values: Any) -> Any:
    """A loss, what else its function gives, and a list of the gradients of the sum of its elements."""
    value, pull, aux = jax.vjp(loss, values, has_aux=True)
    return (value, aux), [pull(jnp.ones_like(value))[0]]


def differentiate(count: int | None, known: _Known, loss: Function, values: Any) -> Any:
    """A loss, or a tuple of `count` of them, what else its function gives, and the gradients of each.

    Args:
      count: of losses; None for one that is not in a tuple.
      known: what is known of such gradients of replicas with rows.
      loss: gives losses and something else.
      values: a list of arrays, or a pair of lists: gradients by the first are None where a loss does not depend on it.
    """
    found, pull, aux = jax.vjp(loss, values, has_aux=True)
    losses = (found,) if count is None else found
    ones, tree = jax.tree.flatten(jax.tree.map(jnp.ones_like, losses))
    of_loss = [place for place, each in enumerate(losses) for _ in jax.tree.leaves(each)]
    program = jax.make_jaxpr(lambda *ends: pull(tree.unflatten(ends)[0] if count is None else tree.unflatten(ends)))(
        *ones
    )
    run = Programs.as_function(program)
    asked_for = [[of == place for of in of_loss] for place in range(len(losses))]
    answers = _as_with_rows(known, count, [_reached(program, asked) for asked in asked_for])
    grads: list[Any] = []
    for asked, reached in zip(asked_for, answers, strict=True):
        ends = [one if own else jnp.zeros_like(one) for own, one in zip(asked, ones, strict=True)]
        by = jax.tree.unflatten(jax.tree.structure(values), run(*ends))
        first, *rest = by if isinstance(by, tuple) else (by,)
        # The first gradients are those by the first list.
        told = [gradient if known else None for gradient, known in zip(first, reached, strict=False)]
        grads.append((told, *rest) if isinstance(by, tuple) else told)
    return (found, aux), grads


def _as_with_rows(known: _Known, count: int | None, reached: list[list[bool]]) -> list[list[bool]]:
    """True for gradients that are computed, for each loss: on a replica without rows those that others have.

    Args:
      known: those of replicas with rows, by lines of the program.
      count: of losses.
      reached: what this replica computes.
    """
    replica = get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return reached  # there are no others
    line = Callers.located(Callers.frame_of(threading.get_ident())), count
    if not replica.without_rows:
        known[line] = reached
        return reached
    # Zeros for all if no replica with rows has been there.
    return known.get(line, [[True] * len(each) for each in reached])


def _reached(program: Any, inputs: Sequence[bool]) -> list[bool]:
    """For each result whether it is computed from one of those inputs. What is not known counts as if it were."""
    jaxpr = Programs.opened(program)
    known = {id(var) for var, own in zip(jaxpr.invars, inputs, strict=True) if own}

    def of(atoms: Sequence[Any]) -> list[bool]:
        return [id(atom) in known for atom in atoms]

    for eqn in jaxpr.eqns:
        given = of(eqn.invars)
        if any(given):
            inner = Programs.called(eqn)
            results = [True] * len(eqn.outvars) if inner is None else _reached(inner, given)
            known.update(id(var) for var, own in zip(eqn.outvars, results, strict=True) if own)
    return of(jaxpr.outvars)


points.TAPES.register(of_tape)
