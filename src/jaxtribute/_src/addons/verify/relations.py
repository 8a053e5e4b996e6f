"""Relations of a value of one device to the replicas' values, as their numbers tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from jaxtribute._src.addons.verify.arrangements import Arrangement
from jaxtribute._src.addons.verify.operations import is_key

_CLOSE = 1e-7
_CANCELLED = 1e-11
"""Of what an operation was given: what cancels is rounding below that."""


class Kind(Enum):
    """Relations of a value to those of replicas."""

    SAME = "the same on every replica"
    ROWS = "the replicas' rows behind each other"
    SUM = "the sum of the replicas' values"
    MEAN = "the mean of the replicas' values, by their rows"
    SCALED = "a multiple of it on the replicas"
    NONE = "none of these"
    SKIPPED = "not compared"


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation; of SCALED ones the factor, where all replicas have the same."""

    kind: Kind
    factor: float = 1.0
    alike: bool = False
    """True if the replicas' values are equal: parts of a sum, or a fraction of what each should have."""

    @property
    def good(self) -> bool:
        """True if a sum over the replicas, or nothing, makes the value of one device of it."""
        return self.kind in (Kind.SAME, Kind.ROWS, Kind.SUM, Kind.SKIPPED)


SAME, ROWS = Relation(Kind.SAME), Relation(Kind.ROWS)
NONE, SKIPPED = Relation(Kind.NONE), Relation(Kind.SKIPPED)


def relate(
    one: Any, parts: Sequence[Any], arrangement: Arrangement, given: float = 0.0, close: float = _CLOSE
) -> Relation:
    """Tells how a value is made up.

    Args:
      one: on one device.
      parts: on each replica.
      arrangement: the replicas.
      given: the largest number that the operation was given.
      close: relative difference that counts as none.
    """
    if is_key(one) or any(map(is_key, parts)):
        return SKIPPED
    one, parts = np.asarray(one), list(map(np.asarray, parts))
    if one.dtype == object:
        return SKIPPED
    # Parts of a sum may cancel as well.
    given = max(given, *map(_largest, parts)) if parts else given
    allowed = close * _largest(one) + _CANCELLED * given + 1e-300

    def equal(a: Any, b: Any) -> bool:
        if a.shape != b.shape:
            return False
        if a.dtype.kind not in "fc" and b.dtype.kind not in "fc":
            return np.array_equal(a, b)
        with np.errstate(invalid="ignore"):
            return bool(np.all((np.abs(a - b) <= allowed) | (a == b) | (np.isnan(a) & np.isnan(b))))

    sizes = arrangement.sizes
    busy = [number for number, size in enumerate(sizes) if size]
    if all(part.shape == one.shape for part in parts):
        if all(equal(one, parts[number]) for number in busy):
            return SAME
        if one.dtype.kind == "b":
            return NONE
        numbers = [parts[number].astype(np.float64) if one.dtype.kind in "iu" else parts[number] for number in busy]
        wide = one.astype(np.float64) if one.dtype.kind in "iu" else one
        with np.errstate(all="ignore"):
            return _made_up(wide, numbers, [sizes[number] for number in busy], equal)
    joined = _rows(one, parts, arrangement)
    if joined is None:
        return NONE
    if equal(one, joined):
        return ROWS
    return _scaled_rows(one, joined, parts, allowed)


def _largest(value: Any) -> float:
    """The largest absolute value, of those that are finite."""
    finite = np.abs(value[np.isfinite(value)]) if value.dtype.kind in "fc" else np.abs(value.astype(np.float64))
    return float(np.max(finite, initial=0.0))


def _made_up(one: Any, parts: list[Any], sizes: list[int], equal: Any) -> Relation:
    count, rows = len(parts), sum(sizes)
    total = sum(parts)
    if equal(one, total):
        return Relation(Kind.SUM, 1 / count, alike=all(equal(part, parts[0]) for part in parts))
    if equal(one, sum(part * size for part, size in zip(parts, sizes, strict=True)) / rows):
        return Relation(Kind.MEAN)
    if equal(one * count, total * count * count) or equal(one / count, total):
        return Relation(Kind.SCALED, 1 / count)
    if equal(one, total / count):
        # Of parts with different numbers of rows.
        return Relation(Kind.MEAN)
    if all(equal(one, part * size / rows) for part, size in zip(parts, sizes, strict=True)):
        return Relation(Kind.SCALED, rows / sizes[0])
    for factor in (count, 1 / count, count * count, 1 / count / count):
        if all(equal(one, part / factor) for part in parts):
            return Relation(Kind.SCALED, factor)
    return NONE


def _rows(one: Any, parts: list[Any], arrangement: Arrangement) -> Any:
    """The replicas' values behind each other, along the axis that has the rows; None if none has."""
    ranks = {part.ndim for part in parts} | {one.ndim}
    if len(ranks) > 1:
        return None
    different = [axis for axis in range(one.ndim) if any(part.shape[axis] != one.shape[axis] for part in parts)]
    if len(different) != 1:
        return None
    (axis,) = different
    if sum(part.shape[axis] for part in parts) != one.shape[axis]:
        return None
    joined = np.concatenate(parts, axis)
    rows, length = arrangement.rows, one.shape[axis]
    each, rest = divmod(length, rows)
    if rest or each < 2 or np.array_equal(joined, one):
        return joined
    # Positions of all examples, one after the other: rows are the inner part of the axis.
    moved = [
        np.moveaxis(part, axis, 0).reshape(each, -1, *np.delete(part.shape, axis))
        for part in parts
        if part.shape[axis] % each == 0
    ]
    if len(moved) < len(parts):
        return joined
    inner = np.moveaxis(np.concatenate(moved, 1).reshape(length, *np.delete(one.shape, axis)), 0, axis)
    with np.errstate(invalid="ignore"):
        return inner if np.allclose(inner, one, equal_nan=one.dtype.kind in "fc") else joined


def _scaled_rows(one: Any, joined: Any, parts: list[Any], allowed: float) -> Relation:
    if one.dtype.kind != "f":
        return NONE
    axis = next(axis for axis in range(one.ndim) if any(part.shape[axis] != one.shape[axis] for part in parts))
    bounds = np.cumsum([part.shape[axis] for part in parts])[:-1]
    factors: list[float] = []
    for mine, theirs in zip(np.split(one, bounds, axis), np.split(joined, bounds, axis), strict=True):
        if not mine.size or not np.isfinite(mine).all() or not np.isfinite(theirs).all():
            continue
        place = np.unravel_index(int(np.argmax(np.abs(mine))), mine.shape)
        if mine[place] == 0:
            continue
        factor = theirs[place] / mine[place]
        if np.max(np.abs(theirs - factor * mine)) > allowed * max(abs(factor), 1):
            return NONE
        factors.append(float(factor))
    if not factors or max(factors) <= 0:
        return NONE
    return Relation(Kind.SCALED, factors[0])


def is_fraction(value: Any, reduced: Any) -> bool:
    """True if a value is another one times, or divided by, a whole number."""
    if is_key(reduced) or np.shape(value) != np.shape(reduced) or not np.size(reduced) or value.dtype.kind not in "fiu":
        return False
    largest = np.unravel_index(int(np.argmax(np.abs(reduced))), np.shape(reduced))
    if not reduced[largest] or not value[largest]:
        return False
    ratio = float(value[largest] / reduced[largest])
    whole = max(abs(ratio), 1 / abs(ratio))
    return abs(whole - round(whole)) < 1e-4 * whole and np.allclose(value, reduced * ratio, rtol=1e-4)
