"""Cutting a replica program in two: what only the parameter device needs sinks out of the replicas.

With central storage a replica computes its gradients, reduces them with the others, and then updates the variables;
the update depends on reduced values only. `sink` cuts the program there, wherever that is: the replicas run what
comes before, and what comes after runs once, where the variables are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import PartitionSpec

from jaxtribute._src.execution.inference import varying_values
from jaxtribute._src.jaxprs.core import Jaxpr, JaxprEqn, Literal
from jaxtribute._src.jaxprs.kinds import mentions
from jaxtribute._src.jaxprs.walking import used_by, variables
from jaxtribute._src.values.mesh import AXIS


def sink(eqn: JaxprEqn, sinks: Sequence[bool]) -> tuple[JaxprEqn, list[JaxprEqn]]:
    """Splits a `shard_map` over the replicas.

    Args:
      eqn: the `shard_map`.
      sinks: for each of its outputs whether it is wanted on the parameter device only.

    Returns:
      The `shard_map` of what must stay, which also puts out what the rest needs, and the rest: operations that make
      the outputs that sink. Outputs that no operation makes out of reduced values stay.
    """
    jaxpr: Jaxpr = eqn.params["jaxpr"]
    sinks = _makeable(jaxpr, sinks)
    above, below = _divide(eqn, jaxpr, sinks)
    lower = used_by(below)
    cut = [var for one in above for var in one.outvars if var in lower]
    names: dict[Any, Any] = dict(zip(jaxpr.invars, eqn.invars, strict=True))
    names.update((atom, out) for atom, out, sunk in zip(jaxpr.outvars, eqn.outvars, sinks, strict=True) if sunk)
    rest = [
        one.replace(
            invars=[atom if isinstance(atom, Literal) else names.get(atom, atom) for atom in one.invars],
            outvars=[names.get(var, var) for var in one.outvars],
        )
        for one in below
    ]
    kept = [place for place, sunk in enumerate(sinks) if not sunk]
    outputs = [*(jaxpr.outvars[place] for place in kept), *cut]
    needed = used_by(above, outputs)
    taken = [place for place, var in enumerate(jaxpr.invars) if var in needed]
    specs_in, specs_out = eqn.params["in_specs"], eqn.params["out_specs"]
    inner = jaxpr.replace(invars=[jaxpr.invars[place] for place in taken], outvars=outputs, eqns=above)
    params = {
        **eqn.params,
        "jaxpr": inner,
        "in_specs": tuple(specs_in[place] for place in taken),
        "out_specs": (*(specs_out[place] for place in kept), *(PartitionSpec() for _ in cut)),
    }
    upper = eqn.replace(
        invars=[eqn.invars[place] for place in taken],
        outvars=[*(eqn.outvars[place] for place in kept), *cut],
        params=params,
    )
    return upper, rest


def _makeable(jaxpr: Jaxpr, sinks: Sequence[bool]) -> list[bool]:
    """Leaves out outputs that no operation makes, or that are put out twice."""
    made = {var for eqn in jaxpr.eqns for var in eqn.outvars}
    times: dict[Any, int] = {}
    for var in variables(jaxpr.outvars):
        times[var] = times.get(var, 0) + 1
    return [
        sunk and not isinstance(atom, Literal) and atom in made and times[atom] == 1
        for atom, sunk in zip(jaxpr.outvars, sinks, strict=True)
    ]


def _divide(eqn: JaxprEqn, jaxpr: Jaxpr, sinks: list[bool]) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """The operations that stay and those that sink; outputs that turn out to be made by the former stay too."""
    varies = varying_values(jaxpr, [any(spec) for spec in eqn.params["in_specs"]])
    outputs = list(zip(jaxpr.outvars, sinks, strict=True))
    stay = set(variables([atom for atom, sunk in outputs if not sunk]))
    go = {atom for atom, sunk in outputs if sunk}
    above: list[JaxprEqn] = []
    below: list[JaxprEqn] = []
    for one in reversed(jaxpr.eqns):
        asked = any(var in stay for var in one.outvars)
        sunk = any(var in go for var in one.outvars)
        if asked or one.effects or (sunk and _meets(one, varies)):
            above.append(one)
            stay.update(variables(one.invars))
        elif sunk:
            below.append(one)
            go.update(variables(one.invars))
    above.reverse()
    below.reverse()
    made = {var for one in below for var in one.outvars}
    for place, atom in enumerate(jaxpr.outvars):
        sinks[place] = sinks[place] and atom in made
    return above, below


def _meets(eqn: JaxprEqn, varies: set[Any]) -> bool:
    """True if an operation needs all replicas, or has or gives what may differ between them."""
    return any(var in varies for var in (*variables(eqn.invars), *eqn.outvars)) or mentions(eqn, AXIS)
