"""The places at which replicas of unequal input shapes meet: the same ones for all, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtribute._src.core.execution.eager import InnerCollective
from jaxtribute._src.core.jaxprs.core import ClosedJaxpr, JaxprEqn, aval, bind, opened
from jaxtribute._src.core.jaxprs.kinds import is_collective
from jaxtribute._src.core.jaxprs.making import equal_p, underivable
from jaxtribute._src.core.jaxprs.walking import LOOPS, any_in, called, evaluate
from jaxtribute._src.core.types import Function
from jaxtribute._src.core.values.mesh import AXIS, ReplicaMesh
from jaxtribute._src.core.values.slices import whole_p
from jaxtribute.errors import TraceError

_ADDED = frozenset({"psum", "reduce_scatter"})
"""Names of operations in which zero is nothing."""
_RULED = frozenset({"custom_jvp_call", "custom_vjp_call", "linear_call"})
"""Names of calls whose derivative is what somebody says, and not what their programs say."""


def _refuse(*_: Any) -> Any:
    raise TraceError(
        "a gradient around strategy.run needs the rule of a function with one of its own (jax.custom_vjp or its like), "
        "whose collectives are made by replicas of different shapes, piece by piece: the rule is lost there. HINT: "
        "differentiate in the replica function, with jd.value_and_grad, or give all replicas equally many rows."
    )


_ruled_p = underivable("jd_ruled", _refuse)
"""Marks a result of such a call that has been written out."""


def inlined(closed: ClosedJaxpr, mesh: ReplicaMesh) -> ClosedJaxpr:
    """The program with inner calls written out: those that make collectives, so that it can be cut there, and `jit`'s.

    Of one with rows among its operands all results would differ between replicas, those too that no rows go into.
    """

    def handle(eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any] | None:
        if not (makes_collectives(eqn) or eqn.primitive.name == "jit"):
            return None
        inner = called(eqn)
        if inner is not None:
            results = evaluate(inner, operands, handle)
            # Of sums, which their name tells, the written out messages have the right derivative.
            ruled = eqn.primitive.name in _RULED and opened(inner).debug_info.func_name != "jd_linear"
            return list(map(_ruled_p.bind, results)) if ruled else results
        if not is_cut(eqn):
            raise InnerCollective(f"a collective inside {eqn.primitive.name}")
        return None

    return _traced(lambda *inputs: evaluate(closed, inputs, handle), opened(closed).invars, mesh)


def _traced(run: Function, inputs: Sequence[Any], mesh: ReplicaMesh) -> ClosedJaxpr:
    avals = [jax.ShapeDtypeStruct(aval(var).shape, aval(var).dtype) for var in inputs]
    with mesh.within():
        return jax.make_jaxpr(run, axis_env=[(AXIS, mesh.size)])(*avals)


def makes_collectives(eqn: JaxprEqn) -> bool:
    """True if an operation talks to other replicas, itself or inside."""
    return any_in(eqn, _meets)


def _meets(eqn: JaxprEqn) -> bool:
    """True if replicas exchange values by an operation itself, or it marks the end of an exchange."""
    return eqn.primitive is equal_p or is_collective(eqn, AXIS)


def is_cut(eqn: JaxprEqn) -> bool:
    """True if classes meet at an operation: a collective, or a loop or a condition in which all make the same ones."""
    return _meets(eqn) or (eqn.primitive.name in LOOPS and makes_collectives(eqn))


class Program(NamedTuple):
    """The program of the replicas that have inputs of the same shapes.

    Attributes:
      closed: the program, with its collectives written out.
      sources: what each input is: the number of an argument, or a variable.
    """

    closed: ClosedJaxpr
    sources: list[Any]


class _Meeting(NamedTuple):
    """A place at which replicas meet.

    Attributes:
      eqn: the operation.
      variable: the variable that it gathers, if it does no more than that.
      of_derivative: True if it adds up what a derivative gives each replica.
      differentiated: True if it belongs to the value that is differentiated, and not to its derivative.
    """

    eqn: JaxprEqn
    variable: Any
    of_derivative: bool
    differentiated: bool

    def fits(self, other: _Meeting) -> bool:
        """True if replicas that run two programs may meet here."""
        same = self.eqn.primitive is other.eqn.primitive and self.variable is other.variable
        same = same and self.differentiated == other.differentiated
        return same and [aval(one).shape for one in self.eqn.invars] == [aval(one).shape for one in other.eqn.invars]


def completed(programs: Sequence[Program], mesh: ReplicaMesh) -> list[Program]:
    """Lets each program make the gathers of variables, and the sums of derivatives, that only another one makes.

    All replicas must come to them, and one without examples may have no use for them: to look up no rows JAX does not
    read the table, and what a loss of no rows does not depend on has no derivative. Programs that differ in other
    collectives are left as they are.
    """
    meetings = list(map(_meetings, programs))
    # What only a shorter one gathers is not looked for: such programs are left to differ, and the caller refuses them.
    longest = max(meetings, key=len)
    return [
        _with_meetings(program, _missing(own, longest, _is_empty(program)), mesh)
        for program, own in zip(programs, meetings, strict=True)
    ]


def _meetings(program: Program) -> list[_Meeting]:
    jaxpr = opened(program.closed)
    sources: dict[Any, Any] = dict(zip(jaxpr.invars, program.sources, strict=True))
    meetings: list[_Meeting] = []
    for eqn in filter(is_cut, jaxpr.eqns):
        source = sources.get(eqn.invars[0]) if eqn.primitive is whole_p else None
        stack = str(eqn.source_info.name_stack)
        backwards = "transpose(" in stack
        adds, forwards = backwards and eqn.primitive.name in _ADDED, "jvp(" in stack and not backwards
        meetings.append(_Meeting(eqn, None if isinstance(source, int) else source, adds, forwards))
    return meetings


def _is_empty(program: Program) -> bool:
    """True if the replicas have no examples."""
    return any(0 in aval(var).shape for var in opened(program.closed).invars)


def _missing(own: Sequence[_Meeting], others: Sequence[_Meeting], empty: bool) -> list[tuple[int, _Meeting]]:
    """The meetings that a program lacks and can make, each with the number of its own that come before."""
    missing: list[tuple[int, _Meeting]] = []
    place = 0
    for meeting in others:
        # As a merge of two sequences: what fits goes together; what does not must be one that this program can make in
        # addition. Any other difference makes it impossible, and the caller says why.
        if place < len(own) and own[place].fits(meeting):
            place += 1
        elif meeting.variable is None and not (empty and meeting.of_derivative and not any(map(meeting.fits, own))):
            return []  # of several that are alike nobody could say which one is missing
        else:
            missing.append((place, meeting))
    return missing if place == len(own) else []


def _with_meetings(program: Program, missing: Sequence[tuple[int, _Meeting]], mesh: ReplicaMesh) -> Program:
    if not missing:
        return program
    known = set(program.sources)
    pieces: dict[Any, Any] = {}
    for _, meeting in missing:
        # A program that lacks a gather may lack the variable too, which then becomes a further input.
        if meeting.variable is not None and meeting.variable not in known:
            pieces[meeting.variable] = meeting.eqn.invars[0]
    sources = [*program.sources, *pieces]

    def run(*inputs: Any) -> list[Any]:
        given = dict(zip(sources, inputs, strict=True))
        place = 0

        def meet() -> None:
            for before, meeting in missing:
                if before == place:
                    # Nobody uses what comes of it. It stands in the program all the same, as a place at which this
                    # class meets the others; `Merged` makes one operation of those of all classes.
                    operands = [jnp.zeros(aval(one).shape, aval(one).dtype) for one in meeting.eqn.invars]
                    if meeting.variable is not None:
                        operands[0] = given[meeting.variable]
                    bind(meeting.eqn, operands)

        def handle(eqn: JaxprEqn, _: list[Any]) -> None:
            nonlocal place
            if is_cut(eqn):
                meet()
                place += 1

        results = evaluate(program.closed, inputs[: len(program.sources)], handle)
        meet()
        return results

    return Program(_traced(run, [*opened(program.closed).invars, *pieces.values()], mesh), sources)
