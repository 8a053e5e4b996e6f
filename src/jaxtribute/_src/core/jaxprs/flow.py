"""Analyses that follow a property of a program's values through calls, loops and conditions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from jaxtribute._src.core.jaxprs.core import Jaxpr, JaxprEqn, Literal, opened
from jaxtribute._src.core.jaxprs.walking import called

T = TypeVar("T")


def scan_counts(eqn: JaxprEqn) -> tuple[int, int, int]:
    """The numbers of a scan's constants and carried values, which are its first operands, and of its turns."""
    if "num_consts" in eqn.params:  # JAX 0.10
        return eqn.params["num_consts"], eqn.params["num_carry"], eqn.params["length"]
    consts, carry, _ = eqn.params["ft_in"].unpack()
    return len(consts), len(carry), eqn.params["length"]


class Flow(ABC, Generic[T]):
    """An analysis that gives each value of a program a property.

    Properties must have finitely many steps: merging again and again comes to an end.

    Args:
      nothing: the property of literals and constants.
    """

    def __init__(self, nothing: T) -> None:
        self._nothing = nothing

    @abstractmethod
    def equation(self, eqn: JaxprEqn, given: list[T]) -> list[T]:
        """The properties of an operation's results, of those of its operands; calls, loops and conditions aside."""

    @abstractmethod
    def merged(self, one: T, other: T) -> T:
        """The property of what may be either of two values."""

    def chosen(self, by: T, value: T) -> T:
        """The property of a value that another one chose, or the number of whose computations it decided."""
        return self.merged(by, value)

    def decides(self, by: T, eqn: JaxprEqn) -> None:
        """Is told of each condition and loop, and of the property of what decides it."""

    def row(self, whole: T) -> T:
        """The property of one row of an array over which a scan goes."""
        return whole

    def both(self, ones: Sequence[T], others: Sequence[T]) -> list[T]:
        """The properties of what may be either of two lists of values."""
        return [self.merged(*pair) for pair in zip(ones, others, strict=True)]

    def outputs(self, jaxpr: Jaxpr, given: Sequence[T]) -> list[T]:
        """The properties of a program's outputs, of those of its inputs."""
        known = self.values(jaxpr, given)
        return [self._of(atom, known) for atom in jaxpr.outvars]

    def values(self, jaxpr: Jaxpr, given: Sequence[T]) -> dict[Any, T]:
        """The properties of all variables of a program; those that are missing depend on no input."""
        known: dict[Any, T] = dict(zip(jaxpr.invars, given, strict=True))
        for eqn in jaxpr.eqns:
            results = self.through(eqn, [self._of(atom, known) for atom in eqn.invars])
            known.update(zip(eqn.outvars, results, strict=True))
        return known

    def _of(self, atom: Any, known: dict[Any, T]) -> T:
        return self._nothing if isinstance(atom, Literal) else known.get(atom, self._nothing)

    def through(self, eqn: JaxprEqn, given: list[T]) -> list[T]:
        """The properties of an operation's results, of those of its operands."""
        name = eqn.primitive.name
        if name == "scan":
            return self._scan(eqn, given)
        if name == "while":
            return self._while(eqn, given)
        if name == "cond":
            return self._cond(eqn, given)
        if name == "custom_linear_solve":
            # It runs one of its programs, on that one's constants and the operands; the others are for derivatives.
            lengths = eqn.params["const_lengths"]
            start = lengths.matvec + lengths.vecmat
            own = given[start : start + lengths.solve]
            return self.outputs(opened(eqn.params["jaxprs"].solve), [*own, *given[sum(lengths) :]])
        root = getattr(eqn.params.get("_prim"), "solve_jaxpr", None)
        if root is not None:  # `lax.custom_root` of JAX 0.12, whose first operands are those of the program
            return self.outputs(opened(root), given[: len(opened(root).invars)])
        inner = called(eqn)
        return self.equation(eqn, given) if inner is None else self.outputs(opened(inner), given)

    def _scan(self, eqn: JaxprEqn, given: list[T]) -> list[T]:
        consts, carries, _ = scan_counts(eqn)
        end = consts + carries
        body = opened(eqn.params["jaxpr"])
        fixed, carry, rows = given[:consts], given[consts:end], list(map(self.row, given[end:]))
        while True:
            # What is carried may change its property from one turn to the next: turned until nothing changes any more.
            outs = self.outputs(body, [*fixed, *carry, *rows])
            after = self.both(carry, outs[:carries])
            if after == carry:
                return [*after, *outs[carries:]]
            carry = after

    def _while(self, eqn: JaxprEqn, given: list[T]) -> list[T]:
        tests, bodies = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        test_consts, body_consts, carry = given[:tests], given[tests : tests + bodies], given[tests + bodies :]
        while True:
            outs = self.outputs(opened(eqn.params["body_jaxpr"]), [*body_consts, *carry])
            # What runs a different number of times ends with different values.
            (goes_on,) = self.outputs(opened(eqn.params["cond_jaxpr"]), [*test_consts, *carry])
            after = [self.chosen(goes_on, value) for value in self.both(carry, outs)]
            if after == carry:
                self.decides(goes_on, eqn)
                return carry
            carry = after

    def _cond(self, eqn: JaxprEqn, given: list[T]) -> list[T]:
        self.decides(given[0], eqn)
        first, *others = [self.outputs(opened(branch), given[1:]) for branch in eqn.params["branches"]]
        for outs in others:
            first = self.both(first, outs)
        # Equal branches do not make equal results: replicas may have taken different ones.
        return [self.chosen(given[0], value) for value in first]


class Touched(Flow[bool]):
    """True for what depends on an input that is marked true."""

    def merged(self, one: bool, other: bool) -> bool:
        return one or other

    def equation(self, eqn: JaxprEqn, given: list[bool]) -> list[bool]:
        """Results depend on what operands do."""
        return [any(given)] * len(eqn.outvars)
