"""Finds how values of a program are made of the rows of a batch: one for each row, their sum, their mean.

The program is traced twice, for a number of rows and for twice as many. An axis that is longer in the second one lies
along the rows, and a number that is larger there counts them. So a mean can be told from a sum, and a constant from a
number of rows: sums over replicas are right for the ones, means by the replicas' shares of rows for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.addons.keras import row_meetings, row_places
from jaxtribute._src.addons.keras.row_axes import Different, is_along_all, lengths_of, lost_axes, scaled_axes
from jaxtribute._src.addons.keras.row_places import DRAWN, Place
from jaxtribute.extending import JaxprEqn, Literal, Programs, Tracer

_per_row_p = Programs.identity("jd_per_row")
mean_p = Programs.identity("jd_mean", _per_row_p.bind)
"""Marks a replica's number as a mean: the replicas' numbers, weighted by their rows, add up to that of the batch.

Its gradient comes as one by a mean: divided by the rows, as far as the analysis can tell.
"""
change_p = Programs.identity("jd_change")
"""Marks gradients that are added up over the replicas: the weights that an optimizer makes of them depend on no rows of
one replica, and grow with no number of rows.
"""
FACTOR = 2
"""The second program has so many times the rows of the first."""
ROWS = 24
"""A number of rows that has halves, thirds and quarters, of which user code may take some."""


class Kind(Enum):
    """Kinds of values, by what becomes of the rows in them."""

    ZERO = auto()
    """Zeros."""
    ALIKE = auto()
    """Depends on no row: a constant, or a number of rows."""
    SAME = auto()
    """The result of a collective, which all replicas have made together."""
    ROWS = auto()
    """Has an axis along the rows."""
    TOTAL = auto()
    """A sum over the rows of what each has."""
    OTHER = auto()
    """Unknown."""


@dataclass(frozen=True, slots=True)
class Part:
    """The relation of a replica's value to the value of the whole batch.

    Attributes:
      kind: what becomes of the rows.
      degree: the power of the number of rows that the value grows by: 1 for a sum over the rows, 0 for a mean.
      numbers: the value itself in both programs, if it is a small constant.
      counts: True if it depends on no row, and has another number for each.
      table: the value itself, if it is a constant or a variable, whose rows may differ.
      of_rows: True if it is known to be computed of rows, of values whose kind is not known.
      moved: the operation that has added to a variable what the rows make, of what is computed of that.
      place: the same value as a place in the batch; None if the batch gives it.
    """

    kind: Kind
    degree: int = 0
    numbers: tuple[Any, Any] | None = field(default=None, compare=False)
    counts: bool = field(default=False, compare=False)
    table: Any = field(default=None, compare=False)
    of_rows: bool = field(default=False, compare=False)
    moved: JaxprEqn | None = field(default=None, compare=False)
    place: Place | None = field(default=None, compare=False)


OTHER = Part(Kind.OTHER)
_SAME = Part(Kind.SAME)
_MARKS: dict[str, Callable[[Sequence[Part]], Part]] = {
    "jd_equal": lambda _: _SAME,
    "jd_alike": lambda _: _SAME,
    "jd_mean": lambda _: Part(Kind.TOTAL),
    "jd_change": lambda _: Part(Kind.ALIKE),
    "jd_per_row": lambda parts: replace(parts[0], degree=parts[0].degree - 1, numbers=None),
}
"""Operations that say themselves what they give."""
_SMALL = 64
"""Constants of at most so many elements are computed."""
_PRODUCTS = frozenset({"mul", "dot_general", "conv_general_dilated"})
_MOVES = frozenset(
    "broadcast_in_dim concatenate copy copy_p cumsum dynamic_slice dynamic_update_slice expand_dims gather pad reshape "
    "rev slice split squeeze stack tile transpose unstack reduce_sum reduce_window_sum select_and_scatter_add".split()
)
_LINEAR = _MOVES | frozenset(
    "add add_any convert_element_type neg sub real imag reduce_precision select_n optimization_barrier stop_gradient "
    "scatter scatter-add scatter_add jd_idle_guard pvary".split()
)
"""Operations that a common factor of the operands goes through."""
_FOLDED = (Programs.ELEMENTWISE | _MOVES | frozenset({"reduce_prod", "reduce_max", "reduce_min"})) - {
    "optimization_barrier"
}
_NUMBERED = (Programs.ELEMENTWISE | _MOVES) - {"gather", "dynamic_slice"}
"""Operations on numbers of rows that give such numbers again."""
_BOUNDING = frozenset({"max", "min", "clamp", "abs", "reduce_max", "reduce_min"})
"""Operations that leave a factor of the rows in them: between constant bounds, a value is as it was."""
_SUMS = frozenset({"add", "add_any", "sub"})
_LOOPS = frozenset({"scan", "while", "cond"})


class Rows:
    """The analysis of two programs that differ in the number of rows.

    Args:
      axis: the name of the replicas' axis.
    """

    def __init__(self, axis: str) -> None:
        self._axis = axis
        self._counts: tuple[int, int] | None = None
        """The numbers of rows in both programs."""
        self._gathered: set[tuple[int, int]] = set()
        """The lengths in both programs of axes along the rows of all replicas."""
        self._caller: JaxprEqn | None = None
        """The outermost operation under way that calls a program."""
        self.picked: int = 0
        """The highest number by which a program takes one row of the batch: `x[1]` takes row 1."""
        self.meets: bool = False
        """True if a collective of the user's own has been seen: what it is good for only the user knows."""
        self.meetings: list[tuple[str, JaxprEqn]] = []
        """Uses of rows by their places, or together with others: in words, and the operation that the user wrote."""

    def outputs(self, one: Programs.Closed, other: Programs.Closed, given: Sequence[Part]) -> list[Part]:
        """The parts of a program's outputs, of those of its inputs.

        Raises:
          Different: the two programs do not do the same.
        """
        a, b = Programs.opened(one), Programs.opened(other)
        if self._counts is None:
            self._counts = _counts(a.invars, b.invars)
        if len(a.eqns) != len(b.eqns) or len(a.invars) != len(b.invars):
            raise Different("they have different operations")
        known: dict[Any, Part] = dict(zip(a.invars, given, strict=True))
        values = zip(a.constvars, Programs.constants(one), Programs.constants(other), strict=True)
        known.update({var: _constant(first, second, self._counts) for var, first, second in values})

        def read(atoms: tuple[Any, Any]) -> Part:
            first, second = atoms
            if isinstance(first, Literal) != isinstance(second, Literal):
                raise Different("a constant takes the place of a value")
            return _constant(first.val, second.val) if isinstance(first, Literal) else known.get(first, OTHER)

        for first, second in zip(a.eqns, b.eqns, strict=True):
            if first.primitive is not second.primitive or len(first.invars) != len(second.invars):
                raise Different(f"{first.primitive.name} in one is {second.primitive.name} in the other")
            parts = list(map(read, zip(first.invars, second.invars, strict=True)))
            results = self._results(first, second, parts)
            if Programs.called(first) is None:
                places = [part.place for part in parts]
                results = [replace(part, place=Place((first, second), i, places)) for i, part in enumerate(results)]
            known.update(zip(first.outvars, results, strict=True))
        return list(map(read, zip(a.outvars, b.outvars, strict=True)))

    def _results(self, one: JaxprEqn, other: JaxprEqn, parts: list[Part]) -> list[Part]:
        name, inner = one.primitive.name, Programs.called(one)
        if inner is not None:
            outer, self._caller = self._caller, self._caller or one
            results = self.outputs(inner, Programs.called(other) or inner, parts)
            self._caller = outer
            return results
        if Programs.names_axis(one, self._axis):
            self.meets, same = True, Programs.equalises(one, self._axis)
            self._note_gathered(one, other) if same else None
            return [_SAME if same else OTHER] * len(one.outvars)
        if name in _MARKS:
            return [_MARKS[name](parts)] * len(one.outvars)
        if not one.outvars:  # what only shows something
            return []
        scaled = [scaled_axes(*pair) for pair in zip(one.outvars, other.outvars, strict=True)]
        if name in _FOLDED and scaled == [()] and all(part.numbers for part in parts):
            folded = _folded(one, other, parts)
            if folded is not None:
                return [folded]
        if name in _LOOPS:
            if name == "scan" and any(scaled) and any(part.kind is Kind.ROWS for part in parts):
                (_, carries, turns), (_, _, others) = Programs.scan_counts(one), Programs.scan_counts(other)
                if carries and turns != others:
                    self.meetings.append(("the rows one after another", self._caller or one))
            return [_of_loop(parts, bool(axes)) for axes in scaled]
        results = [_part(one, other, parts, axes, self._gathered, self._counts) for axes in scaled]
        self._note(one, other, parts, results)
        results = self._moved(one, parts, results)
        if not self._counts_rows(one, other, parts, scaled[0]):
            return results
        # Of integers, such as places in rows that lie one behind the other, their use tells. With the replica's own
        # number they are the numbers of rows in the whole batch.
        unknown = any(part.kind is Kind.OTHER for part in parts)
        deferred = name in _NUMBERED and not unknown and not _is_inexact(one)
        kinds = (Kind.ALIKE, Kind.ROWS) if deferred else (Kind.ALIKE,)
        return [replace(part, counts=part.kind in kinds) for part in results]

    def _moved(self, one: JaxprEqn, parts: list[Part], results: list[Part]) -> list[Part]:
        """The results, with the operation that has moved a variable by what the rows make, such as their gradient."""
        if any(part.kind in (Kind.ROWS, Kind.TOTAL) or part.of_rows for part in parts):
            results = [replace(part, of_rows=True) if part.kind is Kind.OTHER else part for part in results]
        if any(part.kind is Kind.ROWS for part in parts):
            return results
        moved = next((part.moved for part in parts if part.moved is not None), None)
        if one.primitive.name in _SUMS and moved is None and _is_inexact(one):
            made = any(part.kind is Kind.TOTAL or part.of_rows for part in parts)
            variable = any(part.kind is Kind.ALIKE and part.numbers is None and not part.counts for part in parts)
            moved = (self._caller or one) if made and variable else None
        return results if moved is None else [replace(part, moved=moved) for part in results]

    def _counts_rows(self, one: JaxprEqn, other: JaxprEqn, parts: list[Part], along: tuple[int, ...]) -> bool:
        """True if a result, whose axes `along` lie along the rows, has another number for each of them."""
        if one.primitive.name.startswith("random_"):
            return False  # keys of random numbers, one for each
        if row_places.looks_up(one, [part.place for part in parts]):
            return False
        if one.primitive.name == "iota":
            axis = one.params["dimension"]
            lengths = tuple(Programs.aval(eqn.outvars[0]).shape[axis] for eqn in (one, other))
            return axis in along and lengths not in self._gathered  # the rows of all have the same numbers everywhere
        return bool(along) and any(part.counts for part in parts)

    def _note_gathered(self, one: JaxprEqn, other: JaxprEqn) -> None:
        """Remembers the lengths of axes that lie along the rows of all replicas."""
        count = max(one.params.get("axis_size", 1), 1)
        for var, twin in zip(one.outvars, other.outvars, strict=True):
            for axis in scaled_axes(var, twin):
                pair = lengths_of(var, twin, axis)
                # Rows that are stacked have an axis of the replicas beside theirs.
                times = 1 if one.params.get("tiled", True) else count
                self._gathered.add((pair[0] * times, pair[1] * times))

    def _note(self, one: JaxprEqn, other: JaxprEqn, parts: list[Part], results: list[Part]) -> None:
        """Remembers if an operation takes rows by their places, or makes rows of several."""
        along = [scaled_axes(*pair) for pair in zip(one.invars, other.invars, strict=True)]
        numbers = [part.numbers for part in parts]
        out = scaled_axes(one.outvars[0], other.outvars[0])
        if row_meetings.from_table(one, along, out, parts[0].table if parts else None, numbers):
            self.meetings.append(("as many rows of a table as there are in the batch", self._caller or one))
        rows = [axes for axes, part in zip(along, parts, strict=True) if part.kind is Kind.ROWS and axes]
        if not rows:
            return
        moved = next((part.moved for part in parts if part.moved is not None), None)
        if moved is not None:
            self.meetings.append(("rows with weights that the replica's own rows have moved", moved))
        notes: list[str | None] = self._reordered(one, other, parts, along[0])
        if parts[0].kind is Kind.ROWS and self._counts is not None:
            for axis in along[0]:
                what, row = row_meetings.taken(one, other, axis, numbers, self._counts) or (None, 0)
                self.picked = max(self.picked, row)
                notes += [what, row_meetings.placed(one, axis, numbers)]
                notes += (
                    [row_meetings.divided(one, axis, out[0], self._counts)] if len(along[0]) == len(out) == 1 else []
                )
        if _tells_numbers(one, parts):
            notes.append("the numbers of the rows")
        widest = max(len(scaled_axes(*pair)) for pair in zip(one.outvars, other.outvars, strict=True))
        if len(rows) > 1 and widest > max(map(len, rows)):
            notes.append("each row with every other one")
        elif results[0].kind is Kind.ROWS and any(map(_is_of_all, parts)):
            notes.append("each row with a number that all rows make")
        self.meetings += [(what, self._caller or one) for what in notes if what is not None]

    def _reordered(self, one: JaxprEqn, other: JaxprEqn, parts: list[Part], along: Sequence[int]) -> list[str | None]:
        """Uses of the rows' order, in words, along axes of the first operand."""
        places = [part.place for part in parts]
        if all(place is not None and place.free for place in places):
            return []  # what is drawn, or counted, is no row
        found: list[str | None] = [row_meetings.ordered(one, along)]
        if found[0] and one.primitive.name == "sort" and places[0] is not None and places[0].free:
            return [DRAWN if places[0].drawn else found[0]]
        counts = self._counts
        for axis in () if counts is None else along:
            lengths = lengths_of(one.invars[0], other.invars[0], axis)
            if counts is not None and lengths not in self._gathered:
                found.append(row_places.reordered(one, other, axis, places, counts))
        return found


def _is_of_all(part: Part) -> bool:
    """True for a number that all rows make; what is drawn is none, whatever the replica draws."""
    return part.kind in (Kind.TOTAL, Kind.OTHER) and not (
        part.place is not None and part.place.free and part.place.drawn
    )


def _tells_numbers(eqn: JaxprEqn, parts: list[Part]) -> bool:
    """True if an operation computes each row with its number, and not only a place where something of it lies."""
    if eqn.primitive.name not in Programs.ELEMENTWISE or not any(part.counts for part in parts):
        return False
    if eqn.primitive.name == "select_n" and parts[0].counts:
        parts = parts[:1]
    elif _is_inexact(eqn):
        return True
    elif Programs.aval(eqn.outvars[0]).dtype != bool:
        return False
    return any(part.counts and part.kind is Kind.ALIKE for part in parts)


def _is_inexact(eqn: JaxprEqn) -> bool:
    return jnp.issubdtype(Programs.aval(eqn.outvars[0]).dtype, jnp.inexact)


def _counts(one: Sequence[Any], other: Sequence[Any]) -> tuple[int, int] | None:
    """The numbers of rows of a batch in two programs, from their inputs; None if no input has any."""
    for var, twin in zip(one, other, strict=False):
        for axis in scaled_axes(var, twin):
            return lengths_of(var, twin, axis)
    return None


def _constant(one: Any, other: Any, rows: tuple[int, int] | None = None) -> Part:
    """The part that a constant of a program is."""
    return replace(_of_numbers(one, other, rows), place=Place(constants=(one, other)))


def _of_numbers(one: Any, other: Any, rows: tuple[int, int] | None = None) -> Part:
    """The part that a constant is."""
    alike, large = np.shape(one) == np.shape(other), max(np.size(one), np.size(other)) > _SMALL
    if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.extended):
        return Part(Kind.ALIKE)  # a key of random numbers
    if isinstance(one, Tracer) or isinstance(other, Tracer) or (large and alike):
        return Part(Kind.ALIKE, table=one)
    first, second = np.asarray(one), np.asarray(other)
    if not alike:
        return Part(Kind.ALIKE, counts=rows is not None and row_meetings.numbers_rows(first, second, rows))
    numbers = first, second
    if np.array_equal(first, second, equal_nan=first.dtype.kind == "f"):
        return Part(Kind.ALIKE if first.any() else Kind.ZERO, 0, numbers, table=first)
    for degree in (1, -1, 2, -2):
        wide = first.astype(np.float64)
        if first.dtype.kind != "b" and np.allclose(second.astype(np.float64), wide * FACTOR**degree, rtol=1e-2, atol=0):
            return Part(Kind.ALIKE, degree, numbers)
    return Part(Kind.OTHER, 0, numbers)


def _folded(one: JaxprEqn, other: JaxprEqn, parts: list[Part]) -> Part | None:
    """The part of a result of small constants; None if it is not small itself."""
    if any(np.prod(Programs.aval(eqn.outvars[0]).shape, dtype=int) > _SMALL for eqn in (one, other)):
        return None
    pairs = [part.numbers for part in parts if part.numbers is not None]
    with jax.ensure_compile_time_eval():
        first, second = (Programs.bind(eqn, [pair[i] for pair in pairs])[0] for i, eqn in enumerate((one, other)))
    return _of_numbers(first, second)


def _of_loop(parts: list[Part], along_rows: bool) -> Part:
    """The part of what a loop or a condition gives."""
    kinds = {part.kind for part in parts}
    if any(part.degree for part in parts):
        return OTHER
    if kinds <= {Kind.ZERO, Kind.ALIKE}:
        return Part(Kind.ALIKE)
    if kinds <= {Kind.ZERO, Kind.ALIKE, Kind.SAME}:
        return _SAME
    return Part(Kind.ROWS) if along_rows else OTHER


def _part(
    one: JaxprEqn,
    other: JaxprEqn,
    parts: list[Part],
    along: tuple[int, ...],
    gathered: set[tuple[int, int]],
    rows: tuple[int, int] | None,
) -> Part:
    """The part of an operation's result, whose axes `along` lie along the rows."""
    kinds = {part.kind for part in parts}
    degree = _degree(one, parts)
    if Kind.OTHER in kinds:
        # What is made for each row with a number of all rows is one of these rows again, as with batch statistics.
        return Part(Kind.ROWS) if along and not _has_unknown_rows(one, other, parts) else OTHER
    if degree is None and along and kinds <= {Kind.ZERO, Kind.ALIKE} and not _is_inexact(one):
        degree = 0  # rows counted from the end, as what takes some by their numbers counts them
    if degree is None:
        if not along or Kind.ROWS not in kinds:
            return OTHER
        # A row's own value, whatever was made of other rows on the way: each replica sees those that it has.
        linear = one.primitive.name in _LINEAR
        return Part(Kind.ROWS, min(part.degree for part in parts if part.kind is not Kind.ZERO) if linear else 0)
    lost = lost_axes(one, other, gathered)
    if Kind.ROWS in kinds:
        return _of_rows(kinds, degree, along, lost)
    if Kind.TOTAL in kinds:
        return Part(Kind.ROWS, degree) if along else _of_totals(one, parts, degree)
    if Kind.SAME in kinds:
        # A replica's share of what all have made together is known by its own number of rows, as in `x * n / total`, or
        # by an axis along its own rows, as in the gradients of a mean.
        shares = all(_is_number_of(rows, part) for part in parts if part.kind is Kind.ALIKE and part.degree)
        own = any(not is_along_all(lengths_of(one.outvars[0], other.outvars[0], axis), gathered) for axis in along)
        return Part(Kind.SAME, degree + lost if shares or own else 0)
    zeros = kinds <= {Kind.ZERO} and one.primitive.name in _LINEAR | _PRODUCTS and bool(kinds)
    if zeros or (one.primitive.name in _PRODUCTS and Kind.ZERO in kinds):
        return Part(Kind.ZERO)
    return Part(Kind.ALIKE, degree + lost)


def _is_number_of(rows: tuple[int, int] | None, part: Part) -> bool:
    """True if a constant is the number of a replica's rows, or divides by it."""
    if rows is None or part.numbers is None:
        return False
    pairs = zip(rows, part.numbers, strict=True)
    return all(np.allclose(value, count) or np.allclose(value * count, 1) for count, value in pairs)


def _has_unknown_rows(one: JaxprEqn, other: JaxprEqn, parts: list[Part]) -> bool:
    """True if an operand of which nothing is known has an axis along the rows."""
    for first, second, part in zip(one.invars, other.invars, parts, strict=True):
        if part.kind is Kind.OTHER and scaled_axes(first, second):
            return True
    return False


def _of_rows(kinds: set[Kind], degree: int, along: tuple[int, ...], lost: int) -> Part:
    if along:
        return Part(Kind.ROWS, degree + lost)
    # Anything else that leaves no axis of rows, such as a maximum, is not a sum over rows.
    return Part(Kind.TOTAL, degree + lost) if lost and Kind.TOTAL not in kinds else OTHER


def _of_totals(one: JaxprEqn, parts: list[Part], degree: int) -> Part:
    name = one.primitive.name
    totals = [part for part in parts if part.kind is Kind.TOTAL]
    if name in _PRODUCTS:
        return Part(Kind.TOTAL, degree) if len(totals) == 1 else OTHER
    if name == "div":
        return Part(Kind.TOTAL, degree) if totals == parts[:1] else OTHER
    rounds = name == "convert_element_type" and np.dtype(one.params["new_dtype"]).kind in "iub"
    if rounds and np.dtype(Programs.aval(one.invars[0]).dtype).kind not in "iub":
        return OTHER
    chooses = name == "select_n" and parts[0].kind is Kind.TOTAL
    return Part(Kind.TOTAL, degree) if name in _LINEAR and not chooses else OTHER


def _degree(eqn: JaxprEqn, parts: list[Part]) -> int | None:
    """The degree of an operation's result, before the rows that it sums up; None if there is none."""
    name = eqn.primitive.name
    if name in _PRODUCTS:
        return sum(part.degree for part in parts)
    if name == "div":
        return parts[0].degree - parts[1].degree
    if name in ("integer_pow", "square") and parts[0].kind is not Kind.TOTAL:
        return parts[0].degree * eqn.params.get("y", 2)
    if name in ("select_n", "dynamic_slice", "gather", "dynamic_update_slice") and parts[0].degree == 0:
        parts = parts[1:] if name == "select_n" else parts[:1] if name != "dynamic_update_slice" else parts[:2]
    elif name.startswith("scatter") and len(parts) > 2:
        parts = [parts[0], parts[2]]
    rows = {part.degree for part in parts if part.kind is Kind.ROWS}
    if name in _BOUNDING and len(rows) == 1 and all(part.kind is Kind.ROWS or not part.degree for part in parts):
        return next(iter(rows))
    degrees = {part.degree for part in parts if part.kind is not Kind.ZERO}
    if name in _LINEAR:
        return None if len(degrees) > 1 else next(iter(degrees), 0)
    return 0 if degrees <= {0} else None
