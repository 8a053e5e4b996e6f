"""Programs made of some of the operations of another program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex


def variables(atoms: Sequence[Any]) -> list[Any]:
    """The atoms of a jaxpr that are no literals."""
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


def used_by(eqns: Sequence[jex.JaxprEqn], outputs: Sequence[Any] = ()) -> dict[Any, None]:
    """What operations use and what is put out, in order; some of it they make themselves."""
    return dict.fromkeys(variables([*(atom for eqn in eqns for atom in eqn.invars), *outputs]))


def piece(
    closed: jex.ClosedJaxpr, inputs: Sequence[Any], eqns: Sequence[jex.JaxprEqn], outputs: Sequence[Any]
) -> jex.ClosedJaxpr:
    """A program of some operations of `closed`, in their order.

    Args:
      closed: the whole program.
      inputs: the values that the operations use and do not make; constants of the whole need not be among them.
      eqns: the operations.
      outputs: the values to put out.
    """
    used = used_by(eqns, outputs)
    constants = zip(closed.jaxpr.constvars, closed.consts, strict=True)
    consts = [(var, value) for var, value in constants if var in used]
    jaxpr = closed.jaxpr.replace(
        constvars=[var for var, _ in consts],
        invars=list(inputs),
        outvars=list(outputs),
        eqns=list(eqns),
        effects=frozenset().union(*(eqn.effects for eqn in eqns)),
    )
    return jex.ClosedJaxpr(jaxpr, [value for _, value in consts])
