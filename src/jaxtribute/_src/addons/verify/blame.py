"""Finds where a step on replicas parts from that on one device: the first value that is not made up as it should be.

Both runs come from one Python function, so that their operations pair up in order. From a wrong result the search goes
back through the operations, as long as what they were given is wrong too. Where all that an operation was given is
right, and its result is not, there is the mistake.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxtribute import ReduceOp
from jaxtribute._src.addons.verify.catalogue import CATALOGUE, Pattern
from jaxtribute._src.addons.verify.comparing import Difference
from jaxtribute._src.addons.verify.machine import Record, Tape
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute._src.addons.verify.relations import NONE, SKIPPED, Kind, Relation, relate
from jaxtribute._src.addons.verify.sources import Place
from jaxtribute._src.addons.verify.stage import Outcome

_SUMS = frozenset({"psum", "psum_invariant", "jd_sum", "pmean"})
_ADDS = frozenset({"add", "sub", "add_any"})
_ORDERS = frozenset(
    "cumsum cumprod cummax cummin cumlogsumexp sort top_k rev gather dynamic_slice slice concatenate".split()
)
_CUTS = frozenset({"slice", "dynamic_slice", "split", "reshape", "gather"})
_EXTREMES = frozenset("reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin reduce_window_max".split())
_SCATTERS = frozenset({"reduce_scatter", "psum_scatter"})
_HANDED = frozenset({"convert_element_type", "reshape", "transpose", "broadcast_in_dim", "squeeze"})
_LINEAR = frozenset({*_ADDS, *_HANDED, "mul", "div", "neg", "select_n"})
_OF_A_COUNT = frozenset({*_ADDS, *_HANDED, "max"})
_STEPS_BACK = 50
"""Operations that are asked for the line of a key, or whether a value is a gradient."""
_UNREDUCED = {
    (Kind.SUM, "MEAN"): "mean-of-sums",
    (Kind.MEAN, "SUM"): "sum-of-means",
    (Kind.SAME, "SUM"): "counted-on-each-replica",
    (Kind.MEAN, "MEAN"): "mean-of-means",
}
"""By what replicas have, and how it is reduced, what is wrong with that."""
_TABLE = CATALOGUE


@dataclass(slots=True, eq=False)
class Culprit:
    """The place of a mistake.

    Attributes:
      pattern: what kind of mistake; None where none fits.
      place: the line.
      elsewhere: another line that has to do with it.
      what: the operation.
      alone: its value on one device.
      others: its value on each replica.
    """

    pattern: Pattern
    place: Place | None
    elsewhere: Place | None = None
    what: str = ""
    alone: Any = None
    others: list[Any] = field(default_factory=list)

    @property
    def mistake(self) -> tuple[str, str]:
        """The name and the line that two findings of one mistake have in common."""
        return self.pattern.name, str(self.place)


class Suspects:
    """The operations of a step, on one device and on replicas.

    Args:
      one: the run on one device.
      found: that on replicas; both have kept what they computed.
      apart: what differs.
      others: names of what differs for another reason.
    """

    def __init__(self, one: Outcome, found: Outcome, apart: Sequence[Difference], others: Sequence[str] = ()) -> None:
        self._arrangement = found.arrangement
        self._tape = one.tapes[0]
        self._close = 1e-4 if one.rounded or found.rounded else 1e-7
        self._pairs = [_paired(self._tape, tape) for tape in found.tapes]
        self._found = found
        self._known: dict[int, Relation] = {}
        self._between: dict[int, tuple[int, Relation]] = {}
        """By operations what replicas reduce before them, and one device does not: its maker, and what came of it."""
        names = {difference.name for difference in apart} | set(others)
        roots = {difference.name: _value_of(one, difference) for difference in apart}
        self._wrong = [number for value in roots.values() for number in self._makers(value)]
        right = [value for variable, value in one.written.items() if variable.name.removesuffix(":0") not in names] + [
            value
            for path, value in one.outputs.items()
            # What each replica has for itself was not compared.
            if f"the result{path}" not in names and not isinstance(found.outputs.get(path), tuple)
        ]
        self._right = self._upstream([number for value in right for number in self._makers(value)])
        self._apart = apart
        self._results_only = all(one.variable is None for one in apart)

    @staticmethod
    def repeated(record: Record, key: Place | None) -> Culprit:
        """The culprit that draws the same numbers on all replicas; and the line that its key comes from."""
        return Culprit(_TABLE["same-random-numbers"], record.place, key, record.name)

    @staticmethod
    def last_line(tape: Tape, record: Record) -> Place | None:
        """The last other line among those that made what an operation was given."""
        todo = [record]
        for _ in range(_STEPS_BACK):
            if not todo:
                break
            one = todo.pop(0)
            if (
                one.place is not None
                and one.place != record.place
                and one.place.file == getattr(record.place, "file", 0)
            ):
                return one.place
            todo += [tape.records[number] for value in one.operands for number in tape.makers.get(id(value), ())]
        return None

    def culprit(self) -> Culprit:
        """The first mistake."""
        leaves, chain = self._leaves()
        if not leaves:
            return self._merged() or self._unreduced() or self._unknown()
        # What one device computes in a way of its own, as of a synchronized layer, cannot be compared.
        paired = [leaf for leaf in leaves if all(self._other(index, leaf) for index in range(len(self._pairs)))]
        first, *others = paired or leaves
        if self._tape.records[first].name in _CUTS:
            # Behind rows that are taken piece by piece a number that is a multiple still says something.
            first = next((leaf for leaf in others if self._relation(leaf).kind is not Kind.NONE), first)
        return self._judged(first, chain)

    # The chain of wrong values.

    def _makers(self, value: Any) -> tuple[int, ...]:
        return self._tape.makers.get(id(value), ())

    def _upstream(self, numbers: Sequence[int]) -> set[int]:
        seen: set[int] = set()
        todo = list(numbers)
        while todo:
            number = todo.pop()
            if number not in seen:
                seen.add(number)
                for operand in self._tape.records[number].operands:
                    todo.extend(self._makers(operand))
        return seen

    def _leaves(self) -> tuple[list[int], set[int]]:
        """The operations that make something wrong of what is right, in order; and all that are wrong on the way."""
        chain: set[int] = set()
        leaves: list[int] = []
        # What has been reduced is to be the same on all replicas; what is still to be may be a part of a sum.
        todo = [(number, True) for number in self._wrong] or self._last()
        seen: set[tuple[int, bool]] = set()
        while todo:
            number, whole = todo.pop()
            if (number, whole) in seen:
                continue
            seen.add((number, whole))
            if self._is_right(self._relation(number), whole):
                continue
            chain.add(number)
            inner = whole and not self._reduces(number)
            wrong = [
                (maker, of_whole)
                for place, of_whole in self._wrong_operands(number, whole=inner)
                for maker in self._operand_makers(number, place)
            ]
            todo.extend(wrong)
            if not wrong:
                leaves.append(number)
        return sorted(set(leaves)), chain

    @staticmethod
    def _is_right(relation: Relation, whole: bool) -> bool:
        return relation.good and not (whole and relation.alike)

    def _reduces(self, number: int) -> bool:
        name = self._tape.records[number].name
        return name in _SUMS or name.startswith("strategy.reduce")

    def _last(self) -> list[tuple[int, bool]]:
        """Suspects all operations if code around the replicas computed what is wrong: reductions first."""
        records = self._tape.records
        reductions = [number for number in range(len(records)) if self._reduces(number)]
        wrong = [number for number in reductions if not self._is_right(self._relation(number), True)]
        return [(number, True) for number in wrong] or [(number, False) for number in range(len(records))]

    def _operand_makers(self, number: int, place: int) -> tuple[int, ...]:
        return self._makers(self._tape.records[number].operands[place])

    def _wrong_operands(self, number: int, *, whole: bool) -> list[tuple[int, bool]]:
        """The operands of an operation that are made up wrongly, and that some operation has made.

        With each, whether it is to be the same on all replicas: what something is divided by always is.
        """
        found: list[tuple[int, bool]] = []
        for place in range(len(self._tape.records[number].operands)):
            makers, of_whole = self._operand_makers(number, place), whole or self._divides(number, place)
            relation = self._operand(number, place)
            if makers and not self._is_right(relation, of_whole):
                found.append((place, of_whole))
                if self._is_between(number, place) and self._relation(makers[0]).good:
                    self._between[number] = makers[0], relation
        return found

    def _divides(self, number: int, place: int) -> bool:
        return place == 1 and self._tape.records[number].name == "div"

    def _is_between(self, number: int, place: int) -> bool:
        """True if replicas have made something else of an operand on its way from where one device has it from."""
        makers, other = self._operand_makers(number, place), self._other(0, number)
        if not makers or other is None or place >= len(other.operands):
            return False
        return self._pairs[0].get(makers[0]) not in self._found.tapes[0].makers.get(id(other.operands[place]), ())

    def _operand(self, number: int, place: int) -> Relation:
        makers = self._operand_makers(number, place)
        record = self._tape.records[number]
        others = [self._other(index, number) for index in range(len(self._pairs))]
        if any(other is None or place >= len(other.operands) for other in others):
            return self._relation(makers[0]) if makers else SKIPPED
        relation = relate(
            record.operands[place],
            [other.operands[place] for other in others if other is not None],
            self._arrangement,
            self._scale_before(makers),
            self._close,
        )
        if relation.alike and makers and not self._is_between(number, place):
            return replace(relation, alike=self._relation(makers[0]).alike)
        return relation

    def _scale_before(self, makers: Sequence[int]) -> float:
        return max((_scale(self._tape.records[maker]) for maker in makers[:1]), default=0.0)

    def _other(self, replica: int, number: int) -> Record | None:
        place = self._pairs[replica].get(number)
        return None if place is None else self._found.tapes[replica].records[place]

    def _relation(self, number: int) -> Relation:
        if number not in self._known:
            self._known[number] = self._related(number)
        return self._known[number]

    def _related(self, number: int) -> Relation:
        record = self._tape.records[number]
        others = [self._other(index, number) for index in range(len(self._pairs))]
        if any(other is None for other in others) or record.name == "axis_index":
            return NONE if record.name != "axis_index" else SKIPPED
        worst = SKIPPED
        for place, value in enumerate(record.results):
            parts = [other.results[place] for other in others if other is not None and place < len(other.results)]
            relation = relate(value, parts, self._arrangement, _scale(record), self._close)
            if worst is SKIPPED or not relation.good:
                worst = relation
        by_chance = worst.alike and not self._is_sum(number)
        given = [self._operand(number, place) for place in range(len(record.operands))] if by_chance else []
        if any(one.kind is Kind.ROWS or (one.kind is Kind.SUM and not one.alike) for one in given):
            return replace(worst, alike=False)  # sums over each replica's rows, and equal by chance
        return worst

    # What kind of mistake it is.

    def _judged(self, leaf: int, chain: set[int]) -> Culprit:
        record, relation = self._tape.records[leaf], self._relation(leaf)
        # Only from here on is something none of the usual relations.
        broken = min(
            (number for number in chain if number >= leaf and self._relation(number).kind is Kind.NONE), default=None
        )
        summed = min((number for number in chain if number > leaf and self._is_sum(number)), default=None)
        if broken is not None and summed is not None and broken >= summed:
            broken = None  # whatever comes after the sum is not to blame
        before = self._gradient_used(broken)
        if before is not None:
            return self._named("gradient-before-reduction", before)
        if relation.kind is Kind.NONE:
            return self._broken(leaf, chain)
        collective = self._wrong_collective(leaf, chain)
        if collective is not None:
            return collective
        if record.name in _SUMS | _SCATTERS or record.name.startswith("strategy.reduce SUM"):
            return self._summed_twice(leaf)
        if self._is_mean(leaf):
            return self._named("mean-of-sums", leaf)
        if relation.kind in (Kind.SCALED, Kind.SUM) and relation.factor < 1 - 1e-9:
            return self._named("scaled-by-replicas", leaf)
        if self._counts_replicas(leaf):
            return self._named("scaled-by-replicas", leaf)
        if record.name == "div" and self._count_of(self._operand_makers(leaf, 1)) is not None:
            return self._local_count(leaf)
        if broken is not None and not self._is_sum(broken):
            # A mean that is added to a part of a sum is no statistics.
            after = self._tape.records[broken]
            rows = any(self._operand(broken, place).kind is Kind.ROWS for place in range(len(after.operands)))
            # A gradient sees a value of the way forward only if something else than a sum is made of it.
            if not (after.backwards and record.backwards) and (rows or after.name not in _ADDS):
                return self._named("batch-statistics", leaf, broken)
        return self._of_means(leaf, chain)

    def _of_means(self, leaf: int, chain: set[int]) -> Culprit:
        uneven = len(set(self._arrangement.sizes)) > 1
        later = min((number for number in chain if number > leaf and self._is_sum(number)), default=None)
        return self._named("mean-of-means" if uneven else "local-mean", leaf, later)

    def _gradient_used(self, broken: int | None) -> int | None:
        """The operation that breaks the relation, if it makes something else of gradients that are not reduced yet."""
        if broken is None:
            return None
        record = self._tape.records[broken]
        if record.backwards or record.eqn is None or record.name in _SUMS or self._after_sum(broken):
            return None
        for place in range(len(record.operands)):
            makers = self._operand_makers(broken, place)
            partial = self._operand(broken, place).kind in (Kind.SUM, Kind.MEAN, Kind.SCALED)
            if makers and partial and self._from_backward(makers[0]):
                return broken
        return None

    def _from_backward(self, number: int) -> bool:
        """True if a value is a gradient: made backwards, or of such by what changes no numbers."""
        todo = [number]
        for _ in range(_STEPS_BACK):
            if not todo:
                break
            record = self._tape.records[todo[0]]
            if record.backwards:
                return True
            todo += self._all_makers(todo[0]) if record.name in _LINEAR else ()
            del todo[0]
        return False

    def _last_made_of_gathered(self, leaf: int) -> int:
        """The last single number that is made of gathered rows before anything is differentiated: a loss."""
        after: set[int] = set()
        last = leaf
        for number, record in enumerate(self._tape.records[:leaf]):
            if record.name.startswith("all_gather") or after.intersection(self._all_makers(number)):
                after.add(number)
                if not record.backwards and not np.ndim(record.results[0]):
                    last = number
        return last

    def _after_sum(self, number: int) -> bool:
        """True if an operation is the division of a mean over the replicas."""
        record = self._tape.records[number]
        makers = self._operand_makers(number, 0) if record.operands else ()
        return bool(makers) and self._is_sum(makers[0])

    def _is_sum(self, number: int) -> bool:
        record = self._tape.records[number]
        if record.name in _SUMS or record.name.startswith("strategy.reduce"):
            return True
        return record.name in ("div", "convert_element_type") and self._after_sum(number)

    def _broken(self, leaf: int, chain: set[int]) -> Culprit:
        """An operation whose operands are right."""
        kinds = [self._operand(leaf, place).kind for place in range(len(self._tape.records[leaf].operands))]
        return (
            self._of_one_replica(leaf, kinds, chain)
            or self._of_partial_sum(leaf, kinds, chain)
            or (self._in_pieces(leaf, chain) if Kind.ROWS in kinds else None)
            or self._named(self._among_rows(leaf, chain), leaf)
        )

    def _of_one_replica(self, leaf: int, kinds: Sequence[Kind], chain: set[int]) -> Culprit | None:
        """A count, a term or a choice that each replica has for itself."""
        record = self._tape.records[leaf]
        if record.name == "div" and kinds[-1] is Kind.SUM and np.ndim(record.operands[-1]) == 0:
            return self._local_count(leaf)
        if any(self._tape.records[maker].name == "axis_index" for maker in self._all_makers(leaf)):
            return self._named("one-replica", leaf)
        if record.name in _ADDS and Kind.SUM in kinds and Kind.SAME in kinds:
            reduction = self._averages(chain)
            if reduction is not None:
                return self._named("mean-of-sums", reduction, self._operand_makers(leaf, kinds.index(Kind.SUM))[0])
            if any(one.variable is not None and one.variable.aggregation.name == "MEAN" for one in self._apart):
                return self._named("local-total", self._operand_makers(leaf, kinds.index(Kind.SUM))[0], leaf)
            # A number that is added to a part of a sum is no term of its own.
            term = self._upstream(self._operand_makers(leaf, kinds.index(Kind.SAME)))
            made = any(np.ndim(value) for number in term for value in self._tape.records[number].operands)
            return self._regularizer(leaf, kinds.index(Kind.SAME)) if made else None
        if record.name in ("select_n", "mul") and self._picks_replica(leaf):
            return self._named("one-replica", leaf)
        return None

    def _averages(self, chain: set[int]) -> int | None:
        """The division of a mean over the replicas on the way to what is wrong."""
        return min((number for number in chain if self._is_mean(number)), default=None)

    def _of_partial_sum(self, leaf: int, kinds: Sequence[Kind], chain: set[int]) -> Culprit | None:
        """A replica's part of a sum that stands for the sum."""
        if Kind.SUM not in kinds:
            return None
        record = self._tape.records[leaf]
        quotient = self._quotient_by(leaf, chain)
        if quotient is not None:
            return self._local_count(quotient)
        partial = self._operand_makers(leaf, kinds.index(Kind.SUM))
        if Kind.ROWS in kinds and partial and not record.backwards:
            return self._named("batch-statistics", partial[0], leaf)
        divides = record.backwards and record.name in ("div", "integer_pow", "pow")
        source = partial[0] if partial else None
        return self._named("local-count" if divides else "local-total", leaf, source)

    def _among_rows(self, leaf: int, chain: set[int]) -> str:
        """The pattern of an operation that compares, orders or numbers a replica's rows."""
        record = self._tape.records[leaf]
        text = (record.place.whole if record.place else "").lower()
        if record.name == "dot_general" or len(self._scaled_axes(leaf)) > 1:
            return "pairs-of-rows"
        if "softmax" in text or "logsumexp" in text:
            return "softmax-over-batch"
        if record.name in _EXTREMES or record.name.startswith("reduce_window"):
            return "extreme-over-batch"
        numbers = record.name == "iota" or not record.operands
        if numbers and not (record.name == "iota" and self._on_line(leaf, "sort", chain)):
            return "numbers-of-rows"
        return "order-of-rows" if numbers or record.name in _ORDERS or "scatter" in record.name else "unknown"

    def _all_makers(self, number: int) -> list[int]:
        count = len(self._tape.records[number].operands)
        return [maker for place in range(count) for maker in self._operand_makers(number, place)]

    def _on_line(self, leaf: int, name: str, chain: set[int]) -> bool:
        place = self._tape.records[leaf].place
        return any(
            self._tape.records[number].name == name and self._tape.records[number].place == place for number in chain
        )

    def _in_pieces(self, leaf: int, chain: set[int]) -> Culprit | None:
        """A mistake behind a step that takes its rows piece by piece: other pieces on replicas, so numbers say little.

        What divides by the number of a piece's rows, or by a number that was counted, is told by its form.
        """
        if self._tape.records[leaf].name not in _CUTS:
            return None
        ratio = self._arrangement.rows / self._arrangement.sizes[0]
        for number in sorted(number for number in chain if number > leaf):
            record, other = self._tape.records[number], self._other(0, number)
            if other is None or record.name not in ("div", "mul"):
                continue
            divisor, theirs = record.operands[-1], other.operands[-1]
            if np.ndim(divisor) or is_key(divisor) or np.ndim(theirs):
                continue
            makers = self._operand_makers(number, len(record.operands) - 1)
            if not makers:
                quotient = float(divisor) / float(theirs) if float(theirs) else 0.0
                near = max(quotient, 1 / quotient if quotient else 0.0)
                if near > 1.2 and abs(near / ratio - 1) < 0.5:
                    return self._of_means(number, chain)
            elif record.name == "div" and self._is_counted(makers):
                return self._local_count(number)
        return None

    def _is_counted(self, makers: Sequence[int]) -> bool:
        """True if a number is a sum over a replica's own rows."""
        return self._count_of(makers) is not None and not any(map(self._is_sum, self._upstream(makers)))

    def _count_of(self, makers: Sequence[int]) -> int | None:
        """The last sum over a replica's own rows that a number is made of."""
        sums = (number for number in self._upstream(makers) if self._tape.records[number].name == "reduce_sum")
        return max(sums, default=None)

    def _local_count(self, quotient: int) -> Culprit:
        return self._named("local-count", quotient, self._count_of(self._operand_makers(quotient, 1)))

    def _quotient_by(self, leaf: int, chain: set[int]) -> int | None:
        """The operation that divides a part of a sum by what becomes of a count, to which a number is added before."""
        after = {leaf}
        if self._tape.records[leaf].name not in _OF_A_COUNT or np.ndim(self._tape.records[leaf].results[0]):
            return None
        for number in sorted(number for number in chain if number > leaf):
            record = self._tape.records[number]
            if self._divides(number, 1) and after.intersection(self._operand_makers(number, 1)):
                return number if self._operand(number, 0).kind in (Kind.SUM, Kind.ROWS) else None
            if record.name in _OF_A_COUNT and after.intersection(self._all_makers(number)):
                after.add(number)
        return None

    def _scaled_axes(self, leaf: int) -> list[int]:
        value, other = self._tape.records[leaf].results[0], self._other(0, leaf)
        theirs = np.shape(other.results[0]) if other is not None else ()
        if len(theirs) != np.ndim(value):
            return []
        return [axis for axis, pair in enumerate(zip(np.shape(value), theirs, strict=True)) if pair[0] != pair[1]]

    def _picks_replica(self, leaf: int) -> bool:
        for place in range(len(self._tape.records[leaf].operands)):
            for number in self._upstream(self._operand_makers(leaf, place)):
                if self._tape.records[number].name == "axis_index":
                    return True
        return False

    def _regularizer(self, leaf: int, place: int) -> Culprit:
        """A value of the variables alone that is added to each replica's share."""
        makers = self._operand_makers(leaf, place)
        source = makers[0] if makers else leaf
        return self._named("counted-on-each-replica", source, self._other_line(source) or leaf)

    def _other_line(self, number: int) -> int | None:
        """The maker of what an operation scales, if it is on another line."""
        record = self._tape.records[number]
        if record.name not in ("mul", "neg", "div", "convert_element_type") or record.place is None:
            return None
        for maker in self._all_makers(number):
            place = self._tape.records[maker].place
            if place is not None and place.line != record.place.line:
                return maker
        return None

    def _summed_twice(self, leaf: int) -> Culprit:
        if self._tape.records[leaf].name in _SCATTERS:
            # Each replica computes the whole loss, of gathered rows.
            return self._named("reduced-twice", self._last_made_of_gathered(leaf), leaf)
        makers = self._operand_makers(leaf, 0)
        reduced = [number for number in self._upstream(makers) if self._is_sum(number)]
        # What no data has gone into was never a part of a sum.
        if makers and not reduced and self._from_backward(makers[0]):
            return self._named("counted-on-each-replica", makers[0], leaf)
        if not reduced and any(self._relation(number).kind is Kind.ROWS for number in self._upstream(makers)):
            # Of the rows of each replica, and by chance the same on all.
            return self._named("sum-of-means", leaf, makers[0] if makers else None)
        return self._named("reduced-twice", leaf, max(reduced, default=None))

    def _is_mean(self, leaf: int) -> bool:
        """True if an operation makes a mean over the replicas."""
        record = self._tape.records[leaf]
        if record.name.startswith("strategy.reduce MEAN"):
            return True
        if record.name != "div" or not self._after_sum(leaf):
            return False
        other = self._other(0, leaf)
        return other is not None and bool(np.all(np.asarray(other.operands[-1]) == self._arrangement.replicas))

    def _counts_replicas(self, leaf: int) -> bool:
        """True if an operation scales by a number that is 1 on one device and the number of replicas elsewhere."""
        record, other = self._tape.records[leaf], self._other(0, leaf)
        if other is None or record.name not in ("mul", "div"):
            return False
        count = self._arrangement.replicas
        for mine, theirs in zip(record.operands, other.operands, strict=True):
            numbers = np.ndim(mine) == 0 and np.ndim(theirs) == 0 and not is_key(mine)
            if numbers and float(mine) == 1.0 and float(theirs) in (float(count), 1.0 / count):
                return True
        return False

    def _wrong_collective(self, leaf: int, chain: set[int]) -> Culprit | None:
        """The reduction that is to blame, where the value of each replica is right for other results."""
        line = self._tape.records[leaf].place
        if line is None or len(set(self._arrangement.sizes)) > 1 or not self._results_only:
            return None
        elsewhere = {
            record.place.line
            for record in map(self._tape.records.__getitem__, self._right)
            if record.place is not None and record.place.file == line.file
        }
        scaled = [
            number
            for number in self._right
            if (place := self._tape.records[number].place) is not None
            and (place.file, place.line) == (line.file, line.line)
            and not self._relation(number).good
        ]
        if not scaled or line.line not in elsewhere:
            return None
        lines = {str(self._tape.records[number].place) for number in self._right if self._is_sum(number)}
        sums = sorted(number for number in chain if number > leaf and self._is_sum(number))
        # Those that right results go through as well are not to blame for this one.
        if not sums or any(str(self._tape.records[number].place) in lines for number in sums):
            return None
        return self._named("sum-of-means", sums[0], leaf)

    def _merged(self) -> Culprit | None:
        """Blames what replicas reduce, and one device does not, such as gradients in Keras's own steps."""
        for number, (maker, after) in sorted(self._between.items()):
            scaled = [one for one in self._upstream([maker]) if self._counts_replicas(one)]
            if scaled:
                return self._named("scaled-by-replicas", min(scaled), number)
            how = "SUM" if after.factor > 1 else "MEAN"
            name = _UNREDUCED.get((self._relation(maker).kind, how))
            if name is not None:
                return self._named(name, number, maker)
        return None

    def _unreduced(self) -> Culprit | None:
        """Blames a value that each replica has right, and that is not put together, or not as it should be."""
        line = self._written()
        how = {one.variable.aggregation.name for one in self._apart if one.variable is not None}
        for number in self._wrong:
            kind = self._relation(number).kind
            names = [_UNREDUCED[kind, one] for one in how if (kind, one) in _UNREDUCED]
            if names or kind in (Kind.SUM, Kind.ROWS, Kind.MEAN):
                culprit = self._named(names[0] if names else "one-replica", number)
                if line is not None and line.line != getattr(culprit.place, "line", 0):
                    culprit.place, culprit.elsewhere = line, culprit.place
                return culprit
        return None

    def _written(self) -> Place | None:
        """The line that writes a variable that differs."""
        lines = (self._found.lines.get(one.variable) for one in self._apart if one.variable is not None)
        return next(filter(None, lines), None)

    @staticmethod
    def unreduced(op: ReduceOp, relation: Relation, place: Place, one: Any, parts: Sequence[Any]) -> Culprit:
        """The culprit that reduces the replicas' results, outside of the step, as their values do not want it."""
        name = _UNREDUCED.get((relation.kind, op.name), "local-total")
        if relation.kind is Kind.SAME:
            name = "sum-of-means"
        return Culprit(_TABLE[name], place, None, "", one, list(parts))

    def _unknown(self) -> Culprit:
        if self._apart and np.shape(self._apart[0].alone) == np.shape(self._apart[0].others):
            return Culprit(_TABLE["one-replica"], self._written())
        return Culprit(_TABLE["unknown"], None)

    def _named(self, pattern: str, number: int, elsewhere: int | None = None) -> Culprit:
        record = self._tape.records[number]
        # Without the size of the batch it divides by this replica's rows, times the number of replicas.
        if record.place is not None and re.search(r"compute_average_loss\((?!.*global_batch_size)", record.place.whole):
            pattern = "mean-of-means"
        others = [self._other(index, number) for index in range(len(self._pairs))]
        other = self._tape.records[elsewhere].place if elsewhere is not None else None
        return Culprit(
            _TABLE[pattern],
            record.place,
            None if record.place is not None and other is not None and other.line == record.place.line else other,
            record.name,
            record.results[0] if record.results else None,
            [one.results[0] for one in others if one is not None and one.results],
        )


def _value_of(one: Outcome, difference: Difference) -> Any:
    if difference.variable is not None:
        return one.written[difference.variable]
    return one.outputs[difference.name.removeprefix("the result")]


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
    keys = [[(record.name, record.place) for record in tape.records] for tape in (one, other)]
    if keys[0] == keys[1]:
        return {number: number for number in range(len(keys[0]))}
    matcher = difflib.SequenceMatcher(None, *keys, autojunk=False)
    pairs: dict[int, int] = {}
    for start, first, length in matcher.get_matching_blocks():
        pairs.update((start + offset, first + offset) for offset in range(length))
    return pairs
