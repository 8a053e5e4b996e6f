"""`RowAxes`: which values of a replica's program have its rows, along which axis, and which are made of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

from jaxtribute.extending import JaxprEqn, Literal, Programs

OWN = -1
"""In place of an axis: the value is made of all of the replica's rows, such as their sum."""
UNKNOWN = -2
"""In place of an axis: the value depends on the rows in a way that is not followed."""


class RowAxes:
    """The axes along which values have the replica's rows.

    Args:
      variables: those that have the rows along their first axis.
    """

    def __init__(self, variables: Iterable[Any]) -> None:
        self._of: dict[Any, int] = dict.fromkeys(variables, 0)

    def of(self, atom: Any) -> int | None:
        """The axis, `OWN` or `UNKNOWN`; None of what does not depend on the rows."""
        return None if isinstance(atom, Literal) else self._of.get(atom)

    def is_own(self, atom: Any) -> bool:
        """True of a value made of all of the replica's rows."""
        return self.of(atom) == OWN

    def bind(self, variable: Any, axis: int | None) -> None:
        """Takes note of a variable's axis."""
        self._of.pop(variable, None)
        if axis is not None:
            self._of[variable] = axis

    def follow(self, eqn: JaxprEqn) -> None:
        """Takes note of the axes of what an operation gives."""
        axes = [self.of(atom) for atom in eqn.invars]
        if any(axis is not None for axis in axes):
            rule = _RULES.get(eqn.primitive.name, _REDUCED if eqn.primitive.name.startswith("reduce_") else _alike)
            found = rule(eqn, axes)
            self._of.update(dict.fromkeys(eqn.outvars, found))


def shape_of(atom: Any) -> tuple[int, ...]:
    """The shape of a value in a program; empty of what has none."""
    return getattr(Programs.aval(atom), "shape", ())


Rule = Callable[[JaxprEqn, Sequence[int | None]], int]


def _of_first(rule: Callable[[JaxprEqn, int], int]) -> Rule:
    """A rule for operations of one operand, of which a rule for its axis says all."""

    def whole(eqn: JaxprEqn, axes: Sequence[int | None]) -> int:
        first = axes[0]
        if first is None or any(axis is not None for axis in axes[1:]):
            return UNKNOWN
        return rule(eqn, first) if first >= 0 else first

    return whole


def _without(axis: int, gone: Sequence[int], if_gone: int) -> int:
    return if_gone if axis in gone else axis - sum(each < axis for each in gone)


def _reshaped(eqn: JaxprEqn, axis: int) -> int:
    """The axis that has as many rows, behind as many elements."""
    before, after = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    for place, size in enumerate(after):
        if size == before[axis] and prod(after[:place]) == prod(before[:axis]):
            return place
    return UNKNOWN


def _contracted(eqn: JaxprEqn, axes: Sequence[int | None]) -> int:
    """Products of matrices: summed over the rows, or with rows in the result."""
    contracting, batch = eqn.params["dimension_numbers"]
    found: set[int] = set()
    ranks = [len(shape_of(atom)) for atom in eqn.invars]
    for side, axis in enumerate(axes):
        if axis is None:
            continue
        if axis < 0:
            found.add(axis)
        elif axis in contracting[side]:
            found.add(OWN)
        elif axis in batch[side]:
            found.add(list(batch[side]).index(axis))
        else:
            free = [each for each in range(ranks[side]) if each not in (*contracting[side], *batch[side])]
            before = len(batch[0]) + (ranks[0] - len(contracting[0]) - len(batch[0]) if side else 0)
            found.add(before + free.index(axis))
    return _common(found)


def _alike(eqn: JaxprEqn, axes: Sequence[int | None]) -> int:
    """Operations on each element; of all others nothing is known."""
    shape = shape_of(eqn.outvars[0]) if eqn.outvars else ()
    if all(shape_of(atom) in (shape, ()) for atom in eqn.invars):
        return _common({axis for axis in axes if axis is not None})
    return UNKNOWN


def _common(found: set[int]) -> int:
    """The axis of a result that is made of values with some axes."""
    rows = found - {OWN}
    if not rows:
        return OWN
    return rows.pop() if len(rows) == 1 else UNKNOWN


_REDUCED = _of_first(lambda eqn, axis: _without(axis, eqn.params.get("axes", ()), OWN))
_RULES: dict[str, Rule] = {
    "broadcast_in_dim": _of_first(lambda eqn, axis: eqn.params["broadcast_dimensions"][axis]),
    "squeeze": _of_first(lambda eqn, axis: _without(axis, eqn.params["dimensions"], UNKNOWN)),
    "transpose": _of_first(lambda eqn, axis: list(eqn.params["permutation"]).index(axis)),
    "reshape": _of_first(_reshaped),
    "dot_general": _contracted,
    "reduce_precision": _alike,
    # In these an element depends on others.
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "rev"), lambda *_: UNKNOWN),
}
