"""`Scales`: the plain numbers by which a replica's program multiplies what it makes of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isnan, prod
from typing import Any, Protocol

import numpy as np

from jaxtribute._src.addons.training.row_axes import UNKNOWN, RowAxes, shape_of
from jaxtribute.extending import Jaxpr, JaxprEqn, Literal, Programs, Tracer

MOST = 64
"""Number of products that are followed; beyond, nothing is said."""
_ONE = frozenset([1.0])
_REAL = ("float", "bfloat", "int", "uint")
_PRODUCTS = ("mul", "div", "dot_general")
_VALUES = {"select_n": slice(1, None), "gather": slice(1), "dynamic_slice": slice(1), "scatter-add": slice(0, 3, 2)}
"""The operands of operations of which some only say where something is."""
_UNCHANGING = ("broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "transpose", "copy")


class ReplicaProgram(Protocol):
    """The replicas that see the same shapes: their program, its ragged inputs' shapes, and the collectives in it."""

    @property
    def closed(self) -> Any:
        """The program with its constants."""
        ...

    @property
    def jaxpr(self) -> Jaxpr:
        """The program alone."""
        ...

    @property
    def sources(self) -> Sequence[Any]:
        """The key of each input, equal where replicas of other shapes have the same value."""
        ...

    @property
    def shapes(self) -> Mapping[Any, tuple[int, ...]]:
        """The shapes on these replicas of inputs that differ between replicas, by their keys."""
        ...

    @property
    def collectives(self) -> Sequence[JaxprEqn]:
        """The operations at which these replicas meet others."""
        ...


class Scales:
    """The plain numbers that a replica's values are multiplied by on their way, since the sums over the replicas.

    A value that is made on several ways, such as a variance, has a product for each of them. A division by what is made
    of the replica's own rows, such as the sum of a mask, counts as one by zero: its number is not the same elsewhere.
    """

    def __init__(self, one: ReplicaProgram) -> None:
        self._of: dict[Any, frozenset[float]] = {}
        self._numbers: dict[Any, float] = {}
        """Values that are a plain number, or an array of equal ones."""
        self._meetings = set(map(id, one.collectives))
        self.has_rows = any(0 not in shape for shape in one.shapes.values())
        given = zip(one.jaxpr.invars, one.sources, strict=False)
        self._axes = RowAxes(variable for variable, source in given if source in one.shapes)
        for variable, value in zip(one.jaxpr.constvars, Programs.constants(one.closed), strict=False):
            if not isinstance(value, Tracer) and not np.ndim(value) and _is_real(value):
                self._numbers[variable] = float(value)
        self._follow(one.jaxpr)

    def of(self, atoms: Iterable[Any]) -> frozenset[float]:
        """The products of all ways that lead to some values."""
        # Zeros are zeros, whatever they are multiplied by.
        counting = (atom for atom in atoms if not isinstance(atom, Literal) and self._numbers.get(atom) != 0)
        ways = [self._of.get(atom, _ONE) for atom in counting]
        return _few(product for way in ways for product in way)

    def _follow(self, jaxpr: Jaxpr) -> None:
        for eqn in jaxpr.eqns:
            inner = list(map(Programs.opened, Programs.programs_in(eqn)))
            if id(eqn) in self._meetings:
                scales = _ONE
            elif inner:
                scales = _few(number for one in inner for number in self._within(one, eqn))
            else:
                values = eqn.invars[_VALUES.get(eqn.primitive.name, slice(None))]
                scales = self._product(eqn) if eqn.primitive.name in _PRODUCTS else self.of(values)
                self._axes.follow(eqn)
                self._note_number(eqn)
            self._of.update(dict.fromkeys(eqn.outvars, scales))

    def _within(self, inner: Jaxpr, eqn: JaxprEqn) -> frozenset[float]:
        """The products of a called program's results."""
        # The last operands are those of the program, whatever stands before them.
        for variable, operand in zip(reversed(inner.invars), reversed(eqn.invars), strict=False):
            self._of[variable] = self.of([operand])
            axis = self._axes.of(operand)
            # The rows of a loop's or a branch's operands may lie elsewhere in it.
            called = shape_of(variable) == shape_of(operand) and len(inner.outvars) == len(eqn.outvars)
            self._axes.bind(variable, axis if called or axis is None else UNKNOWN)
            number = self._number(operand)
            if number is not None:
                self._numbers[variable] = number
        self._follow(inner)
        for variable, result in zip(eqn.outvars, inner.outvars, strict=False):
            alike = not isinstance(result, Literal) and shape_of(variable) == shape_of(result)
            self._axes.bind(variable, self._axes.of(result) if alike else UNKNOWN)
        return self.of(inner.outvars)

    def _product(self, eqn: JaxprEqn) -> frozenset[float]:
        first, second = map(self._factors, eqn.invars)
        if eqn.primitive.name == "div":
            own = self._number(eqn.invars[1]) is None and self._axes.is_own(eqn.invars[1])
            second = frozenset([inf]) if own else frozenset(1 / number if number else inf for number in second)
        elif any(self._axes.is_own(atom) and inf not in self._factors(atom) for atom in eqn.invars):
            # A mean that is multiplied by the number it was divided by is a sum.
            first, second = first - {inf} or _ONE, second - {inf} or _ONE
        return _few(one * two for one in first for two in second)

    def _factors(self, atom: Any) -> frozenset[float]:
        number = self._number(atom)
        if number is not None:
            return frozenset([number])
        return _ONE if isinstance(atom, Literal) else self.of([atom])

    def _number(self, atom: Any) -> float | None:
        """The number that a value is, or all elements of an array are, if it is known."""
        return number_of(atom) if isinstance(atom, Literal) else self._numbers.get(atom)

    def _note_number(self, eqn: JaxprEqn) -> None:
        """Takes note of a result that is made of one known number alone."""
        if len(eqn.invars) != 1 or (number := self._number(eqn.invars[0])) is None:
            return
        if eqn.primitive.name == "reduce_sum":
            shape = shape_of(eqn.invars[0])
            number *= prod(shape[axis] for axis in eqn.params["axes"])
        elif eqn.primitive.name not in _UNCHANGING:
            return
        if _is_real(Programs.aval(eqn.outvars[0])):
            self._numbers[eqn.outvars[0]] = number


def number_of(literal: Any) -> float | None:
    """The number that a literal is; None if it is none, as the derivative of an integer is."""
    value = np.asarray(literal.val)
    return float(value) if _is_real(value) and value.ndim == 0 else None


def _is_real(value: Any) -> bool:
    return str(getattr(value, "dtype", "")).startswith(_REAL)


def _few(numbers: Iterable[float]) -> frozenset[float]:
    """Numbers to six digits, as products come in another order; no more than are followed, and at least 1."""
    rounded = {inf if isnan(number) else float(f"{number:.6g}") for number in numbers}
    return frozenset(sorted(rounded)[:MOST]) or _ONE
