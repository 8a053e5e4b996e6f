"""Both runs of a step, on one device and on replicas, with their operations paired.

Both come from one Python function, so that their operations pair up in order.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxtribute._src.addons.verify.indexing import indexed_axes
from jaxtribute._src.addons.verify.machine import Key, Record, Tape
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute._src.addons.verify.relations import NONE, SKIPPED, Kind, Relation, relate
from jaxtribute._src.addons.verify.rounding import rounding
from jaxtribute._src.addons.verify.sources import innermost
from jaxtribute._src.addons.verify.stage import Outcome
from jaxtribute.nn import compute_average_loss

SUMS = frozenset({"psum", "psum_invariant", "jd_sum", "pmean"})
ADDS = frozenset({"add", "sub", "add_any"})
HANDED = frozenset({"convert_element_type", "reshape", "transpose", "broadcast_in_dim", "squeeze"})
_LINEAR = frozenset({*ADDS, *HANDED, "mul", "div", "neg", "select_n"})
_AVERAGES = compute_average_loss.__code__.co_filename
_CLOSE, _CLOSE_IF_ROUNDED = 1e-7, 1e-4
"""Relative differences that count as none: of what was computed in 64 bits, and behind code that computed in 32."""
STEPS_BACK = 50
"""Operations that are asked for the line of a key, or whether a value is a gradient."""


class Runs:
    """Both runs.

    Operations go by their numbers in the run on one device.

    Args:
      one: the run on one device.
      found: that on replicas; both have kept what they computed.

    Attributes:
      tape: what one device has computed.
      arrangement: the replicas.
    """

    def __init__(self, one: Outcome, found: Outcome) -> None:
        self.arrangement = found.arrangement
        self.tape = one.tapes[0]
        # What code around the replicas rounds is behind what they have computed before.
        self._exact = min((each.exact for each in (one, found) if each.exact is not None), default=None)
        self._pairs = [_paired(self.tape, tape) for tape in found.tapes]
        self._found = found
        self._known: dict[int, Relation] = {}
        pairs = [(pair, rounding(tape)) for pair, tape in zip(self._pairs, found.tapes, strict=True)]
        self._rounding = {
            number for number in rounding(self.tape) if all(pair.get(number) in theirs for pair, theirs in pairs)
        }

    def other_inputs(self, key: Key) -> list[Any]:
        """Returns what each replica's program was given in one place."""
        return [tape.inputs.get(key) for tape in self._found.tapes]

    def record(self, number: int) -> Record:
        """The operation."""
        return self.tape.records[number]

    def makers(self, value: Any) -> tuple[int, ...]:
        """The operations that a value comes from."""
        return self.tape.makers.get(id(value), ())

    def upstream(self, numbers: Sequence[int], *, evidence: bool = False) -> set[int]:
        """All operations that some come from, these too.

        Args:
          numbers: the operations.
          evidence: whether to leave out what stands behind values that say nothing of it.
        """
        seen: set[int] = set()
        todo = list(numbers)
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            todo.extend(self._told_by(number) if evidence else self.all_makers(number))
        return seen

    def _told_by(self, number: int) -> list[int]:
        """The makers of an operation's operands, if it says something of them."""
        if self._forgets(number):
            return []
        record = self.record(number)
        if record.name == "select_n" and len(set(np.asarray(record.operands[0]).flat)) == 1:
            return list(self.makers_of(number, 1 + int(np.asarray(record.operands[0]).flat[0])))
        return self.all_makers(number)

    def _forgets(self, number: int) -> bool:
        """True for results that may be right whatever stands behind them.

        So are truths, of which other numbers can be the reason, signs, what is rounding alone, and quotients and
        products of two wrong numbers: Adam's first step is as long for every gradient, and so is what is clipped.
        """
        record = self.record(number)
        truth = getattr(record.results[0], "dtype", None) == np.bool_
        if truth or number in self._rounding or record.name == "sign":
            return True
        given = [self.operand(number, place) for place in range(2)] if record.name in ("div", "mul") else []
        return bool(given) and not any(one.good and not one.alike for one in given)

    def is_own_index(self, number: int, place: int) -> bool:
        """True for indices that number a replica's own rows, in an array that has no others: they are right."""
        record, others = self.record(number), [other for other in self.others(number) if other is not None]
        axes = indexed_axes(record.eqn.params) if record.eqn is not None and place == 1 else ()
        if not axes or len(others) < len(self._pairs):
            return False
        own = _scaled(record.operands[0], others[0].operands[0])
        rest = [column for column, axis in enumerate(axes) if axis not in own]
        if len(rest) == len(axes):
            return False
        columns = [np.asarray(other.operands[1])[..., rest] for other in others]
        return relate(np.asarray(record.operands[1])[..., rest], columns, self.arrangement).good

    def cuts_sum(self, number: int) -> bool:
        """True for a derivative that takes a replica's rows out of what is still to be added up over the replicas."""
        record = self.record(number)
        if not record.backwards or record.name not in ("slice", "dynamic_slice", "gather"):
            return False
        return self.operand(number, 0).kind is Kind.SUM and bool(self.scaled_axes(number))

    def is_last(self, number: int) -> bool:
        """True if nothing on the same expression is made of an operation's results."""
        place = self.record(number).place
        return not any(
            one.place == place and number in self.all_makers(user)
            for user, one in enumerate(self.tape.records)
            if not one.backwards
        )

    def forwards(self, number: int, name: str) -> bool:
        """True if an operation of that name, which is not made to differentiate, is in the same place."""
        place = self.record(number).place
        return any(not one.backwards and (one.name, one.place) == (name, place) for one in self.tape.records)

    def differentiated(self, number: int) -> bool:
        """True if JAX has made an operation in the same place to differentiate."""
        place = self.record(number).place
        return any(one.backwards and one.place == place for one in self.tape.records)

    def makers_of(self, number: int, place: int) -> tuple[int, ...]:
        """The makers of an operand."""
        return self.makers(self.record(number).operands[place])

    def all_makers(self, number: int) -> list[int]:
        """The makers of all operands."""
        count = len(self.record(number).operands)
        return [maker for place in range(count) for maker in self.makers_of(number, place)]

    def other(self, replica: int, number: int) -> Record | None:
        """The same operation on a replica; None if it has none."""
        place = self._pairs[replica].get(number)
        return None if place is None else self._found.tapes[replica].records[place]

    def sliced(self, value: Any) -> Record | None:
        """The operation that has taken a slice for an operand of the first replica; None if none has."""
        tape = self._found.tapes[0]
        makers = [tape.records[number] for number in tape.makers.get(id(value), ())]
        return next((record for record in makers if record.name in ("slice", "dynamic_slice", "gather")), None)

    def others(self, number: int) -> list[Record | None]:
        """The same operation on each replica."""
        return [self.other(replica, number) for replica in range(len(self._pairs))]

    def relation(self, number: int) -> Relation:
        """The way in which replicas make up the results of an operation: the worst of them."""
        if number not in self._known:
            self._known[number] = self._related(number)
        return self._known[number]

    def _related(self, number: int) -> Relation:
        record = self.record(number)
        others = self.others(number)
        if any(other is None for other in others) or record.name == "axis_index":
            return NONE if record.name != "axis_index" else SKIPPED
        if number in self._rounding:
            return SKIPPED
        worst = SKIPPED
        for place, value in enumerate(record.results):
            parts = [other.results[place] for other in others if other is not None and place < len(other.results)]
            relation = relate(value, parts, self.arrangement, _scale(record), self._close(number))
            if worst is SKIPPED or not relation.good:
                worst = relation
        if worst.kind is Kind.NONE and record.name.startswith("all_gather") and self.operand(number, 0).good:
            return SKIPPED  # the replicas' parts behind each other, of which one device has the sum alone
        by_chance = worst.alike and not self.is_sum(number)
        given = [self.operand(number, place) for place in range(len(record.operands))] if by_chance else []
        if any(one.kind is Kind.ROWS or (one.kind is Kind.SUM and not one.alike) for one in given):
            return replace(worst, alike=False)  # sums over each replica's rows, and equal by chance
        return worst

    def operand(self, number: int, place: int) -> Relation:
        """The way in which replicas make up an operand."""
        makers = self.makers_of(number, place)
        if makers and self._rounding.issuperset(makers):
            return SKIPPED
        record = self.record(number)
        others = self.others(number)
        if any(other is None or place >= len(other.operands) for other in others):
            return self.relation(makers[0]) if makers else SKIPPED
        relation = relate(
            record.operands[place],
            [other.operands[place] for other in others if other is not None],
            self.arrangement,
            self._scale_before(makers),
            self._close(number),
        )
        if relation.alike and makers and not self.is_between(number, place):
            return replace(relation, alike=self.relation(makers[0]).alike)
        return relation

    def _close(self, number: int) -> float:
        """The relative difference that counts as none, of an operation's results and operands."""
        return _CLOSE if self._exact is None or number < self._exact else _CLOSE_IF_ROUNDED

    def _scale_before(self, makers: Sequence[int]) -> float:
        return max((_scale(self.record(maker)) for maker in makers[:1]), default=0.0)

    def is_between(self, number: int, place: int) -> bool:
        """True if replicas have made something else of an operand on its way from where one device has it from."""
        makers, other = self.makers_of(number, place), self.other(0, number)
        if not makers or other is None or place >= len(other.operands):
            return False
        return self._pairs[0].get(makers[0]) not in self._found.tapes[0].makers.get(id(other.operands[place]), ())

    def is_sum(self, number: int) -> bool:
        """True if an operation reduces over the replicas, or is the division of a mean over them."""
        record = self.record(number)
        if record.name in SUMS or record.name.startswith("strategy.reduce"):
            return True
        return record.name in ("div", "convert_element_type") and self.after_sum(number)

    def after_sum(self, number: int) -> bool:
        """True if an operation is the division of a mean over the replicas."""
        record = self.record(number)
        makers = self.makers_of(number, 0) if record.operands else ()
        return bool(makers) and self.is_sum(makers[0])

    def reduces(self, number: int) -> bool:
        """True if an operation reduces over the replicas."""
        name = self.record(number).name
        return name in SUMS or name.startswith("strategy.reduce")

    def divides(self, number: int, place: int) -> bool:
        """True for what a quotient is divided by."""
        return place == 1 and self.record(number).name == "div"

    def is_mean(self, leaf: int) -> bool:
        """True if an operation makes a mean over the replicas."""
        record = self.record(leaf)
        if record.name.startswith("strategy.reduce MEAN"):
            return True
        if record.name != "div" or not self.after_sum(leaf):
            return False
        other = self.other(0, leaf)
        return other is not None and bool(np.all(np.asarray(other.operands[-1]) == self.arrangement.replicas))

    def counts_replicas(self, leaf: int) -> bool:
        """True if an operation scales by a number that is 1 on one device and the number of replicas elsewhere.

        Or what is the same on all replicas by a constant times that number, as by a learning rate.
        """
        record, other = self.record(leaf), self.other(0, leaf)
        if other is None or record.name not in ("mul", "div"):
            return False
        count = float(self.arrangement.replicas)
        for place, (mine, theirs) in enumerate(zip(record.operands, other.operands, strict=True)):
            if is_key(mine) or np.ndim(mine) or np.ndim(theirs) or not mine:
                continue
            ratio = complex(theirs / mine)
            if mine == 1 and ratio in (count, 1 / count):
                return True
            shared = not record.backwards and self.operand(leaf, 1 - place).kind is Kind.SAME
            if ratio == count and shared and not self.makers_of(leaf, place):
                return True
        return False

    def counts_rows(self, leaf: int) -> bool:
        """True if an operation adds or multiplies by a constant that is a number of rows: the replica's own."""
        record, other = self.record(leaf), self.other(0, leaf)
        if other is None or record.name not in (*ADDS, "mul"):
            return False
        rows = self.arrangement.rows, self.arrangement.sizes[0]
        both = enumerate(zip(record.operands, other.operands, strict=True))
        return any(
            not is_key(mine) and not np.ndim(mine) and (abs(float(mine)), abs(float(theirs))) == rows
            for place, (mine, theirs) in both
            if not self.makers_of(leaf, place)
        )

    def is_default_count(self, number: int) -> bool:
        """True if an operation of `compute_average_loss` has a replica's rows, times the replicas, for the batch's."""
        record = self.record(number)
        if not is_averaging(record):
            return False
        counts = (
            place
            for place, one in enumerate(self.tape.records)
            if one.name == "max" and one.place == record.place and is_averaging(one)
        )
        return any(map(self._is_rows_times_replicas, counts))

    def _is_rows_times_replicas(self, count: int) -> bool:
        """True for a number of which each replica has a multiple of its own rows, and other replicas another one."""
        sizes, others = self.arrangement.sizes, self.others(count)
        mine = float(self.record(count).operands[0])
        theirs = [float(one.operands[0]) if one is not None else 0.0 for one in others]
        wanted = self.arrangement.rows / self.arrangement.replicas
        both = zip(theirs, sizes, strict=True)
        return len(set(theirs)) > 1 and all(abs(one * wanted - mine * size) < 1e-6 * mine for one, size in both if size)

    def shares(self, leaf: int) -> tuple[float, list[float]] | None:
        """The number that an operation scales by, on one device and on each replica, if the program knows it."""
        record, others = self.record(leaf), self.others(leaf)
        if record.name not in ("mul", "div") or any(other is None for other in others):
            return None
        for place in range(2):
            numbers = [one.operands[place] for one in (record, *others) if one is not None]
            if not self.makers_of(leaf, place) and not any(is_key(one) or np.ndim(one) or not one for one in numbers):
                mine, *theirs = (float(one) if record.name == "mul" else 1 / float(one) for one in numbers)
                return mine, theirs
        return None

    def from_backward(self, number: int) -> bool:
        """True if a value is a gradient that is not reduced: made backwards, or of such by what changes no numbers."""
        todo = [number]
        for _ in range(STEPS_BACK):
            if not todo:
                break
            number = todo.pop(0)
            record = self.record(number)
            if record.backwards:
                return True
            if any(self.is_between(number, place) for place in range(len(record.operands))):
                break
            todo += self.all_makers(number) if record.name in _LINEAR else ()
        return False

    def accumulates(self, number: int) -> bool:
        """True if an operation makes a gradient of gradients: it scales or adds them."""
        record = self.record(number)
        if record.name not in _LINEAR:
            return False
        for place, value in enumerate(record.operands):
            makers = self.makers_of(number, place)
            begins = not is_key(value) and not np.any(value)
            if not begins and (np.ndim(value) if not makers else not all(map(self.from_backward, makers))):
                return False
        return True

    def scaled_axes(self, leaf: int) -> list[int]:
        """The axes that have other lengths on replicas."""
        other = self.other(0, leaf)
        return _scaled(self.record(leaf).results[0], other.results[0]) if other is not None else []

    def is_made_of_arrays(self, makers: Sequence[int]) -> bool:
        """True if arrays that no operation has made, or keys, go into a value: it is no constant."""
        return any(
            is_key(value) or np.ndim(value)
            for number in self.upstream(makers)
            for place, value in enumerate(self.record(number).operands)
            if is_key(value) or not self.makers_of(number, place)
        )

    def is_counted(self, makers: Sequence[int]) -> bool:
        """True if a number is a sum over a replica's own rows."""
        return self.count_of(makers) is not None and not any(map(self.is_sum, self.upstream(makers)))

    def count_of(self, makers: Sequence[int]) -> int | None:
        """The last sum over a replica's own rows that a number is made of."""
        sums = (number for number in self.upstream(makers) if self.record(number).name == "reduce_sum")
        return max(sums, default=None)

    def on_line(self, leaf: int, name: str, chain: set[int]) -> bool:
        """True if an operation of that name, among those of `chain`, is on the same line."""
        place = self.record(leaf).place
        return any((self.record(number).name, self.record(number).place) == (name, place) for number in chain)

    def other_line(self, number: int) -> int | None:
        """The maker of what an operation scales, if it is on another line."""
        record = self.record(number)
        if record.name not in ("mul", "neg", "div", "convert_element_type") or record.place is None:
            return None
        for maker in self.all_makers(number):
            place = self.record(maker).place
            if place is not None and place.line != record.place.line:
                return maker
        return None


def is_averaging(record: Record) -> bool:
    """True for an operation that `jd.nn.compute_average_loss` makes."""
    return record.eqn is not None and (innermost(record.eqn) or ("", 0))[0] == _AVERAGES


def _scaled(one: Any, other: Any) -> list[int]:
    """The axes that have other lengths."""
    if np.ndim(one) != np.ndim(other):
        return []
    return [axis for axis, pair in enumerate(zip(np.shape(one), np.shape(other), strict=True)) if pair[0] != pair[1]]


def _scale(record: Record) -> float:
    largest = 0.0
    for value in record.operands:
        if not is_key(value):
            array = np.asarray(value)
            if array.dtype.kind == "f":
                finite = array[np.isfinite(array)]
                largest = max(largest, float(np.max(np.abs(finite), initial=0.0)))
    return largest


def _paired(one: Tape, other: Tape) -> dict[int, int]:
    """By the number of an operation on one device, that of the same one on a replica."""
    # Several operations of a library may have one line of the user's.
    keys = [
        [(record.name, record.place, record.eqn and innermost(record.eqn)) for record in tape.records]
        for tape in (one, other)
    ]
    if keys[0] == keys[1]:
        return {number: number for number in range(len(keys[0]))}
    matcher = difflib.SequenceMatcher(None, *keys, autojunk=False)
    pairs: dict[int, int] = {}
    for start, first, length in matcher.get_matching_blocks():
        pairs.update((start + offset, first + offset) for offset in range(length))
    return pairs
