"""Runs a chain by a plan: pieces that are computed again stand under `jax.checkpoint`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxtribute._src.addons.memory.chains import Chain, Operation
from jaxtribute._src.addons.memory.choosing import Piece, Plan
from jaxtribute.extending import Programs


def run(chain: Chain, plan: Plan, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a chain, whose backward pass goes by the plan.

    Args:
      chain: the chain.
      plan: which of its pieces are computed again.
      inputs: one for each input of its program.
    """
    values: dict[int, Any] = dict(chain.known)
    values.update(zip(chain.inputs, inputs, strict=True))
    for piece in plan.pieces:
        operations = chain.operations[piece.start : piece.stop]
        if piece.recomputed:
            _recomputed(chain, piece, values)
        else:
            for operation in operations:
                _apply(operation, values, piece.body)
    return [values[one] for one in chain.outputs]


def _apply(operation: Operation, values: dict[int, Any], body: Plan | None = None) -> None:
    eqn = operation.eqn
    if body is not None and operation.body is not None:
        params = dict(eqn.params) | {"jaxpr": _planned(operation.body, body)}
        eqn = eqn.replace(params=params)
    with Programs.made_by(operation.eqn):
        results = Programs.bind(eqn, [values[one] for one in operation.reads])
    values.update(zip(operation.writes, results, strict=True))


def _planned(chain: Chain, plan: Plan) -> Any:
    """The body of a scan as a program that goes by its plan."""
    avals = [Programs.aval(var) for var in Programs.opened(chain.program).invars]
    outlines = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals]
    return jax.make_jaxpr(lambda *inputs: run(chain, plan, inputs))(*outlines)


def _recomputed(chain: Chain, piece: Piece, values: dict[int, Any]) -> None:
    operations = chain.operations[piece.start : piece.stop]
    made = {one for operation in operations for one in operation.writes}
    used = [one for operation in operations for one in operation.reads]
    known = {one: chain.known[one] for one in used if one in chain.known}
    inputs = [one for one in dict.fromkeys(used) if one not in made and one not in known]
    later = {one for operation in chain.operations[piece.stop :] for one in operation.reads} | set(chain.outputs)
    outputs = [one for operation in operations for one in operation.writes if one in later]

    def call(given: Sequence[Any]) -> list[Any]:
        inside = known | dict(zip(inputs, given, strict=True))
        for operation in operations:
            _apply(operation, inside)
        return [inside[one] for one in outputs]

    results = jax.checkpoint(call)([values[one] for one in inputs])
    values.update(zip(outputs, results, strict=True))
