"""Going through programs: the programs inside operations, evaluation with a handler, programs cut out of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxtribute._src.core.jaxprs.core import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    as_closed,
    bind,
    closed,
    constants,
    is_program,
    made_by,
    opened,
)

_CALLS = frozenset(
    "jit call closed_call eval_jaxpr custom_jvp_call custom_vjp_call custom_vmap_call linear_call remat2 checkpoint "
    "composite custom_partitioning xla_metadata_call".split()
)
UNKNOWN = "an unknown line"
LOOPS = frozenset({"scan", "while", "cond"})
STRUCTURES = _CALLS | LOOPS | {"shard_map"}
"""Names of the operations that do nothing but run the programs inside them."""

Handler = Callable[[JaxprEqn, list[Any]], "Sequence[Any] | None"]
"""Gives the results of an operation on operands; None if the operation is to be applied as it is."""


def programs_in(eqn: JaxprEqn) -> Iterator[Any]:
    """The programs inside an operation, closed or not: bodies, branches, called functions.

    Args:
      eqn: an operation of a jaxpr.
    """
    for value in eqn.params.values():
        # Branches of a condition are a tuple of programs; all else has one program to a parameter.
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if is_program(item):
                yield item


def operations_in(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """The operations of the programs inside an operation; not those further inside."""
    for program in programs_in(eqn):
        yield from opened(program).eqns


def any_in(eqn: JaxprEqn, test: Callable[[JaxprEqn], bool]) -> bool:
    """True if an operation, or one inside it at any depth, passes the test."""
    return test(eqn) or any(any_in(inner, test) for inner in operations_in(eqn))


def called(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """The program that an operation calls once with its own operands; None if it does something else."""
    if eqn.primitive.name not in _CALLS:
        return None
    inside = list(programs_in(eqn))
    # The name alone promises nothing of a later JAX: operands and results must fit one to one, else the operation
    # counts as unknown.
    jaxpr = opened(inside[0]) if len(inside) == 1 else None
    if jaxpr is None or len(jaxpr.invars) != len(eqn.invars) or len(jaxpr.outvars) != len(eqn.outvars):
        return None
    return as_closed(inside[0])


def evaluate(program: ClosedJaxpr, inputs: Sequence[Any], handle: Handler) -> list[Any]:
    """Runs a program operation by operation.

    Args:
      program: the program.
      inputs: its inputs: arrays, tracers, or whatever `handle` knows.
      handle: is asked for the results of each operation first.
    """
    jaxpr = opened(program)
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants(program), strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for eqn in jaxpr.eqns:
        operands = list(map(read, eqn.invars))
        with made_by(eqn):
            results = handle(eqn, operands)
            if results is None:
                results = bind(eqn, operands)
        values.update(zip(eqn.outvars, results, strict=True))
    return list(map(read, jaxpr.outvars))


def variables(atoms: Sequence[Any]) -> list[Any]:
    """The atoms of a program that are no literals."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def used_by(eqns: Sequence[JaxprEqn], outputs: Sequence[Any] = ()) -> dict[Any, None]:
    """Values that operations use and that are put out, in order; some of them are made by the operations themselves."""
    # A dictionary for its order. A set would go by addresses, so that each process of a cluster would build, and
    # compile, another program.
    atoms: list[Any] = []
    for eqn in eqns:
        atoms += eqn.invars
    return dict.fromkeys(variables([*atoms, *outputs]))


def piece(program: ClosedJaxpr, inputs: Sequence[Any], eqns: Sequence[JaxprEqn], outputs: Sequence[Any]) -> ClosedJaxpr:
    """A program of some operations of another, in their order.

    Args:
      program: the whole program.
      inputs: the values that the operations use and do not make; constants of the whole need not be among them.
      eqns: the operations.
      outputs: the values to put out.
    """
    used = used_by(eqns, outputs)
    whole = opened(program)
    constvars: list[Any] = []
    consts: list[Any] = []
    for var, value in zip(whole.constvars, constants(program), strict=True):
        # Of the constants only what the piece needs: each is an array that the compiled piece would hold.
        if var in used:
            constvars.append(var)
            consts.append(value)
    jaxpr = whole.replace(
        constvars=constvars,
        invars=list(inputs),
        outvars=list(outputs),
        eqns=list(eqns),
        # Of these operations alone: with an effect of one that is left out JAX would keep the piece in an order that
        # nothing asks for.
        effects=frozenset().union(*(eqn.effects for eqn in eqns)),
    )
    return closed(jaxpr, consts)


def with_inputs(program: ClosedJaxpr, stands: Sequence[JaxprEqn]) -> ClosedJaxpr:
    """The program with the results of some operations, each of one result and no operands, as inputs after its own."""
    whole: Jaxpr = opened(program)
    # By identity: equal operations may stand at several places of a program.
    gone = set(map(id, stands))
    lifted = whole.replace(
        invars=[*whole.invars, *(eqn.outvars[0] for eqn in stands)],
        eqns=[eqn for eqn in whole.eqns if id(eqn) not in gone],
    )
    return closed(lifted, constants(program))
