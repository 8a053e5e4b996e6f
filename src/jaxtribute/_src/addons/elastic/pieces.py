"""`Pieces`: a program cut where islands exchange values, so that the exchanges are plain calls in Python.

A program that calls out of itself takes JAX's slow way in, a thread of XLA's for each call, and copies on both sides:
four times as long as to run the pieces one by one. A program whose exchanges lie in loops or conditions stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute.extending import Programs
from jaxtribute.typing import HostArray

EXCHANGE = "exchange between islands: "
"""Before what an exchange is for, in the name of its call in a program."""
Exchange = Callable[[list[HostArray], str], Sequence[HostArray]]


class _Whole(Exception):  # noqa: N818
    """An exchange lies where the program cannot be cut."""


class _Piece(NamedTuple):
    """Part of a program between two exchanges.

    Attributes:
      run: the compiled piece.
      inputs: the values that it takes.
      outputs: those that it makes, and that are used behind it.
    """

    run: Any
    inputs: list[Any]
    outputs: list[Any]


def _exchange_of(eqn: Any) -> str | None:
    """Purpose of an exchange, as its name says; None for other operations."""
    name = eqn.params.get("name")
    return name.removeprefix(EXCHANGE) if isinstance(name, str) and name.startswith(EXCHANGE) else None


def _has_exchange(eqn: Any) -> bool:
    if _exchange_of(eqn) is not None:
        return True
    inside = (Programs.opened(program).eqns for program in Programs.programs_in(eqn))
    return any(_has_exchange(each) for eqns in inside for each in eqns)


def _flat(program: Any) -> Any:
    """The program with every call that has exchanges inside written out."""

    def handle(eqn: Any, operands: list[Any]) -> Sequence[Any] | None:
        if _exchange_of(eqn) is not None or not _has_exchange(eqn):
            return None
        inner = Programs.called(eqn)
        if inner is None:
            raise _Whole
        return Programs.evaluate(inner, operands, handle)

    inputs = [Programs.aval(var) for var in Programs.opened(program).invars]
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in inputs]
    return jax.make_jaxpr(lambda *given: Programs.evaluate(program, given, handle))(*shapes)


class Pieces:
    """A program cut at its exchanges.

    Args:
      program: one that `_flat` has written out.
      exchange: sums arrays over the islands.
    """

    def __init__(self, program: Any, exchange: Exchange) -> None:
        self._exchange = exchange
        whole = Programs.opened(program)
        self._inputs, self._outputs = list(whole.invars), list(whole.outvars)
        self._constants = dict(zip(whole.constvars, Programs.constants(program), strict=True))
        groups: list[list[Any]] = [[]]
        self._cuts: list[Any] = []
        for eqn in whole.eqns:
            if _exchange_of(eqn) is None:
                groups[-1].append(eqn)
            else:
                self._cuts.append(eqn)
                groups.append([])
        self._pieces: list[_Piece] = []
        # From the end, as a piece puts out what is used behind it.
        needed = Programs.used_by([], self._outputs)
        for number in reversed(range(len(groups))):
            self._pieces.insert(0, self._piece(program, groups[number], needed))
            needed |= dict.fromkeys(self._pieces[0].inputs)
            if number:
                needed |= Programs.used_by([self._cuts[number - 1]])

    @classmethod
    def of(cls, program: Any, exchange: Exchange) -> Pieces | None:
        """The program in pieces; None if it cannot be cut."""
        try:
            return cls(_flat(program), exchange)
        except _Whole:
            return None

    def _piece(self, program: Any, eqns: list[Any], needed: dict[Any, None]) -> _Piece:
        made = dict.fromkeys(var for eqn in eqns for var in eqn.outvars)
        outputs = [var for var in made if var in needed]
        inputs = [var for var in Programs.used_by(eqns) if var not in made and var not in self._constants]
        closed = Programs.piece(program, inputs, eqns, outputs)
        return _Piece(jax.jit(Programs.as_function(closed)), inputs, outputs)

    def __call__(self, *given: Any) -> list[Any]:
        """The program's results."""
        values: dict[Any, Any] = {**self._constants, **dict(zip(self._inputs, given, strict=True))}
        for number, piece in enumerate(self._pieces):
            if piece.outputs:
                results = piece.run(*[values[var] for var in piece.inputs])
                values.update(zip(piece.outputs, results, strict=True))
            if number < len(self._cuts):
                cut = self._cuts[number]
                operands = [np.asarray(_read(atom, values)) for atom in cut.invars]
                sums = self._exchange(operands, _exchange_of(cut) or "")
                values.update(zip(cut.outvars, sums, strict=True))
        return self._results(values)

    def _results(self, values: dict[Any, Any]) -> list[Any]:
        """The results, each an array of JAX's and of its own, though a value may be given out twice."""
        taken: set[int] = set()
        results: list[Any] = []
        for atom in self._outputs:
            value = _read(atom, values)
            if not isinstance(value, jax.Array) or id(value) in taken:
                value = jnp.array(value)
            taken.add(id(value))
            results.append(value)
        return results


def _read(atom: Any, values: dict[Any, Any]) -> Any:
    # A literal; on JAX 0.10 it may not be looked for, as it has no hash.
    return atom.val if hasattr(atom, "val") else values[atom]
