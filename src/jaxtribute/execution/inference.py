"""Which results of one replica's program are the same on every replica.

A value is mirrored if it depends only on mirrored inputs, constants and results of collectives over all
replicas; everything that depends on the replica's own data or id *varies*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex

from jaxtribute.collectives.marks import equal_p
from jaxtribute.collectives.wholes import alike_p, whole_p
from jaxtribute.errors import VariableError
from jaxtribute.values.mesh import AXIS

_EQUALISING = frozenset(
    {"psum", "psum2", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant", whole_p.name}
)
_VARYING = frozenset({"axis_index", "ppermute", "pshuffle", "all_to_all", "reduce_scatter", "psum_scatter",
                      "ragged_all_to_all", "pure_callback", "io_callback", "rng_uniform"})  # fmt: skip
COLLECTIVES = _EQUALISING | {
    "ppermute",
    "pshuffle",
    "all_to_all",
    "reduce_scatter",
    "psum_scatter",
    "ragged_all_to_all",
    equal_p.name,
}
"""Names of the primitives by which replicas exchange values, or that mark the end of an exchange."""
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
          "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "checkpoint": "jaxpr",
          "remat2": "jaxpr"}  # fmt: skip
"""Primitives that call one inner program with their own operands, and the parameter that holds it."""
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def varying_outputs(jaxpr: jex.Jaxpr, inputs: Sequence[bool]) -> list[bool]:
    """Tells for each output of `jaxpr` whether it may differ between replicas.

    Args:
      jaxpr: one replica's program.
      inputs: for each input whether it may differ; constants do not.
    """
    varies = varying_values(jaxpr, inputs)
    return [not isinstance(atom, jex.Literal) and atom in varies for atom in jaxpr.outvars]


def varying_values(jaxpr: jex.Jaxpr, inputs: Sequence[bool]) -> set[Any]:
    """The values of `jaxpr` that may differ between replicas; arguments as for `varying_outputs`."""
    varies: set[Any] = {var for var, flag in zip(jaxpr.invars, inputs, strict=True) if flag}
    for eqn in jaxpr.eqns:
        flags = [not isinstance(atom, jex.Literal) and atom in varies for atom in eqn.invars]
        varies.update(var for var, out in zip(eqn.outvars, _equation(eqn, flags), strict=True) if out)
    return varies


def communicates(eqn: jex.JaxprEqn) -> bool:
    """Whether an operation is, or contains, a collective, or depends on which replica runs it."""
    name = eqn.primitive.name
    return (
        name in _VARYING
        or name in _EQUALISING
        or any(communicates(inner) for sub in jex.jaxprs_in_params(eqn.params) for inner in _open(sub).eqns)
    )


def _equation(eqn: jex.JaxprEqn, flags: list[bool]) -> list[bool]:
    name, params, count = eqn.primitive.name, eqn.params, len(eqn.outvars)
    if name in _VARYING:
        return [True] * count
    if eqn.primitive is equal_p:
        return [False] * count
    if eqn.primitive is alike_p:
        _check_alike(params["name"], flags[0])
        return flags
    if name in _EQUALISING:
        axes = params.get("axes", params.get("axis_name"))
        whole = AXIS in (axes if isinstance(axes, (tuple, list)) else (axes,))
        whole = whole and params.get("axis_index_groups") is None
        return [any(flags) and not whole] * count
    if name == "scan":
        return _scan(params, flags)
    if name == "while":
        return _while(params, flags)
    if name == "cond":
        outs = [varying_outputs(_open(branch), flags[1:]) for branch in params["branches"]]
        return [flags[0] or any(column) for column in zip(*outs, strict=True)]
    for key in _INNER:
        inner = params.get(key)
        if inner is not None and len(_open(inner).invars) == len(flags) and len(_open(inner).outvars) == count:
            return varying_outputs(_open(inner), flags)
    return [any(flags) or _has_varying_source(eqn)] * count


def _check_alike(name: str, varies: bool) -> None:
    if varies:
        raise VariableError(
            f"{name} would get a different value on each replica. HINT: reduce the value before it is assigned "
            "(strategy.reduce, ctx.all_reduce), or create the variable with an aggregation."
        )


def _open(jaxpr: Any) -> jex.Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jaxpr


def _scan(params: dict[str, Any], flags: list[bool]) -> list[bool]:
    consts, carries = scan_counts(params)
    body = _open(params["jaxpr"])
    flags = list(flags)
    while True:
        outs = varying_outputs(body, flags)
        carry = [before or after for before, after in zip(flags[consts : consts + carries], outs, strict=False)]
        if carry == flags[consts : consts + carries]:
            return outs
        flags[consts : consts + carries] = carry


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """The numbers of a scan's constants and carried values, which come first among its operands."""
    if "num_consts" in params:  # JAX 0.10
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def _while(params: dict[str, Any], flags: list[bool]) -> list[bool]:
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts, carry = flags[:tests], flags[tests : tests + bodies], flags[tests + bodies :]
    while True:
        outs = varying_outputs(_open(params["body_jaxpr"]), [*body_consts, *carry])
        # Replicas that loop a different number of times end with different values.
        stops = any(varying_outputs(_open(params["cond_jaxpr"]), [*test_consts, *carry]))
        after = [stops or before or out for before, out in zip(carry, outs, strict=True)]
        if after == carry:
            return carry
        carry = after


def _has_varying_source(eqn: jex.JaxprEqn) -> bool:
    return any(
        inner.primitive.name in _VARYING or _has_varying_source(inner)
        for sub in jex.jaxprs_in_params(eqn.params)
        for inner in _open(sub).eqns
    )
