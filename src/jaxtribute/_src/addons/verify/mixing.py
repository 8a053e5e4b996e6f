"""Operations among rows: what compares, orders, numbers or leaves out a replica's rows, or asks which replica it is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from jaxtribute._src.addons.verify.depending import is_joined, of_own_rows
from jaxtribute._src.addons.verify.pairing import ADDS, HANDED, Runs
from jaxtribute._src.addons.verify.relations import Kind
from jaxtribute._src.addons.verify.sources import Place, is_theirs

_ORDERS = frozenset(
    "cumsum cumprod cummax cummin cumlogsumexp sort top_k rev gather dynamic_slice slice concatenate".split()
)
_EXTREMES = frozenset("reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin reduce_window_max".split())
_OF_A_COUNT = frozenset({*ADDS, *HANDED, "max", "reduce_prod", "select_n"})
"""Operations that make of a count what something is divided by."""
_PICKS = frozenset({"dynamic_slice", "gather", "slice"})


def among_rows(runs: Runs, leaf: int, chain: Collection[int]) -> str:
    """The pattern of an operation that compares, orders or numbers a replica's rows."""
    record = runs.record(leaf)
    text = (record.place.whole if record.place else "").lower()
    if record.name == "dot_general" or len(runs.scaled_axes(leaf)) > 1:
        return "pairs-of-rows"
    if "softmax" in text or "logsumexp" in text:
        return "softmax-over-batch"
    if record.name in _EXTREMES or record.name.startswith("reduce_window"):
        return "extreme-over-batch"
    numbers = record.name == "iota" or not record.operands
    if numbers and not (record.name == "iota" and runs.on_line(leaf, "sort", set(chain))):
        return "numbers-of-rows"
    return "order-of-rows" if numbers or record.name in _ORDERS or "scatter" in record.name else "unknown"


def cut(runs: Runs, leaf: int) -> tuple[str, Place] | None:
    """The pattern and the line that takes a part of the rows on a replica, where one device takes all."""
    other, record = runs.other(0, leaf), runs.record(leaf)
    if other is None:
        return None
    for place, value in enumerate(record.operands):
        if runs.operand(leaf, place).kind is not Kind.NONE or place >= len(other.operands):
            continue
        sliced = runs.sliced(other.operands[place])
        if sliced is None or sliced.place is None:
            continue
        makers = runs.makers_of(leaf, place)
        if makers and runs.record(makers[0]).name.startswith("all_gather"):
            return "numbers-of-rows", sliced.place
        if not makers and _lengths(runs, leaf, place) != np.shape(value):
            return "order-of-rows", sliced.place
    return None


def numbered(runs: Runs, chain: Collection[int]) -> tuple[str, int] | None:
    """The pattern and the operation by which a replica's number first goes into what becomes of rows."""
    asked: set[int] = set()
    rows = of_own_rows(runs)
    for number, record in enumerate(runs.tape.records):
        makers = runs.all_makers(number)
        by_number = record.name == "axis_index" or not asked.isdisjoint(makers)
        if not by_number or (is_joined(runs, number) and record.name != "axis_index"):
            continue
        asked.add(number)
        gathered = any(runs.record(one).name.startswith("all_gather") for one in runs.upstream(makers))
        if number not in chain or not (number in rows or gathered):
            continue
        if record.name in _PICKS:
            return "numbers-of-rows", number
        if any(runs.operand(number, place).kind is Kind.ROWS for place in range(len(record.operands))):
            return "rows-by-replica", number
    return None


def times_rows(runs: Runs, chain: Collection[int], leaves: Collection[int]) -> tuple[int, int] | None:
    """A number of this replica's rows, and the operation of a library's in which it multiplies each row.

    Of the kind is a loss function that returns one number, which sample weights are then multiplied with.
    """
    own = of_own_rows(runs)
    # Derivatives, and what a library counts, are not the first to be wrong.
    clear = any(not runs.record(leaf).backwards and _is_theirs(runs.record(leaf).place) for leaf in leaves)
    for number in sorted(chain) if clear else range(len(runs.tape.records)):
        record = runs.record(number)
        if record.name != "mul" or record.backwards or record.place is None or _is_theirs(record.place):
            continue
        for place in (0, 1):
            makers = [_unspread(runs, one) for one in runs.makers_of(number, place)]
            rows = runs.makers_of(number, 1 - place) or runs.operand(number, 1 - place).kind is Kind.ROWS
            scalar = all(not np.ndim(runs.record(one).results[0]) for one in makers)
            good = all(runs.relation(one).kind in (Kind.SUM, Kind.MEAN) for one in makers)
            if makers and rows and scalar and good and np.ndim(record.results[0]) and not own.isdisjoint(makers):
                return _theirs(runs, makers[0]), number
    return None


def _unspread(runs: Runs, number: int) -> int:
    """The operation whose result is only given another shape or type by this one, and by those before it."""
    while runs.record(number).name in ("broadcast_in_dim", "convert_element_type") and runs.makers_of(number, 0):
        number = runs.makers_of(number, 0)[0]
    return number


def _theirs(runs: Runs, number: int) -> int:
    """The last operation on a line of the user's that goes into this one; itself if there is none."""
    behind = sorted(runs.upstream([number]), reverse=True)
    return next((one for one in behind if _is_theirs(runs.record(one).place)), number)


def _is_theirs(place: Place | None) -> bool:
    """True for a line that is no part of a library."""
    return place is not None and is_theirs(place.file)


def is_divided_by_own(runs: Runs, leaf: int) -> bool:
    """True if a part of a sum, with a number added, is divided by what else depends on this replica's rows."""
    own = of_own_rows(runs)
    return any(
        leaf in runs.makers_of(number, 0) and not own.isdisjoint(runs.makers_of(number, 1))
        for number, record in enumerate(runs.tape.records)
        if record.name == "div" and not record.backwards
    )


def of_lengths(runs: Runs, leaf: int) -> bool:
    """True for what is made of an array's shape alone, as its number of elements is."""
    record, others = runs.record(leaf), runs.others(leaf)
    if record.name not in ("convert_element_type", "reduce_prod") or runs.all_makers(leaf):
        return False
    # What replicas have a part of is made of rows.
    return all(other is not None and np.shape(other.operands[0]) == np.shape(record.operands[0]) for other in others)


def dividing(runs: Runs, leaf: int, chain: Collection[int]) -> int | None:
    """The operation that divides by what becomes of a number, to which others are added on the way."""
    after = {leaf}
    for number in sorted(number for number in chain if number > leaf):
        if runs.divides(number, 1) and after.intersection(runs.makers_of(number, 1)):
            return number
        if runs.record(number).name in _OF_A_COUNT and after.intersection(runs.all_makers(number)):
            after.add(number)
    return None


def quotient_by(runs: Runs, leaf: int, chain: Collection[int]) -> int | None:
    """The operation that divides a part of a sum by what becomes of a count, to which a number is added before."""
    number = dividing(runs, leaf, chain) if runs.record(leaf).name in _OF_A_COUNT else None
    # Several sums may be divided by several counts; rows are, by statistics.
    divided = (Kind.SUM,) if np.ndim(runs.record(leaf).results[0]) else (Kind.SUM, Kind.ROWS)
    return None if number is None or runs.operand(number, 0).kind not in divided else number


def is_local_times_replicas(runs: Runs, leaf: int) -> bool:
    """True if a sum is divided by a replica's own number of rows, times the number of replicas."""
    scaled, arrangement = runs.shares(leaf), runs.arrangement
    if scaled is None or len(set(arrangement.sizes)) == 1:
        return False
    both = zip(scaled[1], arrangement.sizes, strict=False)
    wanted = arrangement.rows / arrangement.replicas
    return all(abs(theirs * size / (scaled[0] * wanted) - 1) < 1e-4 for theirs, size in both if size)


def joined_wrongly(runs: Runs, number: int) -> tuple[str, int] | None:
    """The pattern and the operation to blame for what replicas have in common, and not as it should be.

    Either a mean over the replicas, or what is made of gathered values.
    """
    behind = runs.upstream([number])
    joins = [one for one in behind if is_joined(runs, one)]
    if number in of_own_rows(runs) or not joins:
        return None
    mean = next((one for one in sorted(joins) if runs.is_mean(one)), None)
    wrong = (one for one in sorted(behind) if one > max(joins) and not runs.relation(one).good)
    return ("unknown", next(wrong, number)) if mean is None else ("mean-of-sums", mean)


def sums_rows(runs: Runs, leaf: int) -> bool:
    """True for a sum of gradients of rows, divided: only a derivative rule of the user's makes a mean of them."""
    makers = runs.makers_of(leaf, 0) if runs.record(leaf).name == "div" else ()
    return any(runs.record(one).name == "reduce_sum" for one in makers)


def _lengths(runs: Runs, leaf: int, place: int) -> Any:
    """The shape of an operand, if the replicas' parts are put behind each other."""
    shapes = [np.shape(one.operands[place]) for one in runs.others(leaf) if one is not None]
    whole = np.shape(runs.record(leaf).operands[place])
    if any(len(shape) != len(whole) for shape in shapes):
        return None
    scaled = [axis for axis, size in enumerate(whole) if any(shape[axis] != size for shape in shapes)]
    return tuple(sum(shape[axis] for shape in shapes) if axis in scaled else size for axis, size in enumerate(whole))
