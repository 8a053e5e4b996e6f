"""The way back from what is wrong, through wrong values, to the operations that make them of what is right."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtribute._src.addons.verify.pairing import ADDS, HANDED, Runs
from jaxtribute._src.addons.verify.relations import Kind, Relation

_MIXES = frozenset({*ADDS, *HANDED, "mul"})
"""Operations of which a small change of a large value is made, such as a step of an optimizer, or an average."""


class Trail:
    """The wrong values.

    Args:
      runs: both runs.
      wrong: the operations that made what differs.

    Attributes:
      between: by operations what replicas reduce before them, and one device does not: its maker, and what came of it.
      leaves: the operations that make something wrong of what is right, in order.
      chain: all that are wrong on the way.
    """

    def __init__(self, runs: Runs, wrong: Sequence[int]) -> None:
        self._runs, self._wrong = runs, wrong
        self.between: dict[int, tuple[int, Relation]] = {}
        self._inputs = set(map(id, runs.tape.inputs.values()))
        self.leaves, self.chain = self._leaves()

    def _leaves(self) -> tuple[list[int], set[int]]:
        """Goes back."""
        chain: set[int] = set()
        leaves: list[int] = []
        # What has been reduced is to be the same on all replicas; what is still to be may be a part of a sum.
        todo = [*((number, True) for number in self._wrong), *self._faint(chain)] or self._last()
        seen: set[tuple[int, bool]] = set()
        while todo:
            number, whole = todo.pop()
            if (number, whole) in seen:
                continue
            seen.add((number, whole))
            if self._is_right(self._runs.relation(number), whole):
                continue
            chain.add(number)
            inner = whole and not self._runs.reduces(number)
            wrong = [
                (maker, of_whole)
                for place, of_whole in self._wrong_operands(number, whole=inner)
                for maker in self._runs.makers_of(number, place)
            ]
            wrong = wrong or self._given(number)
            todo.extend(wrong)
            if not wrong:
                leaves.append(number)
        return sorted(set(leaves)), chain

    def _given(self, number: int) -> list[tuple[int, bool]]:
        """The wrong reductions before an operation whose operand code around the replicas has made, wrongly too."""
        operands = enumerate(self._runs.record(number).operands)
        wrong = any(
            id(value) in self._inputs and not self._is_right(self._runs.operand(number, place), whole=True)
            for place, value in operands
        )
        return [
            (before, True)
            for before in range(number if wrong else 0)
            if self._runs.record(before).name.startswith("strategy.")
            and not self._is_right(self._runs.relation(before), whole=True)
        ]

    def _faint(self, chain: set[int]) -> list[tuple[int, bool]]:
        """The wrong values behind what differs by so little that its own numbers are taken for the same.

        Args:
          chain: gets the operations that they go through.
        """
        found: list[tuple[int, bool]] = []
        seen: set[int] = set()
        todo = list(self._wrong)
        while todo:
            number = todo.pop()
            if number in seen or self._runs.relation(number).kind is not Kind.SAME:
                continue
            seen.add(number)
            if self._runs.record(number).name not in _MIXES:
                continue
            wrong = self._wrong_operands(number, whole=True)
            if wrong:
                chain.add(number)
            found += [(maker, whole) for place, whole in wrong for maker in self._runs.makers_of(number, place)]
            todo += self._runs.all_makers(number)
        return found

    @staticmethod
    def _is_right(relation: Relation, whole: bool) -> bool:
        return relation.good and not (whole and relation.alike)

    def _last(self) -> list[tuple[int, bool]]:
        """Suspects all operations if code around the replicas computed what is wrong: reductions first.

        That code has what it reduces itself, if it does.
        """
        numbers = range(len(self._runs.tape.records))
        outside = [number for number in numbers if self._runs.record(number).name.startswith("strategy.")]
        if outside and all(self._is_right(self._runs.relation(number), True) for number in outside):
            return []
        reductions = [number for number in numbers if self._runs.is_sum(number)]
        # Of a mean its division, which makes of a sum of means what it should be.
        inner = {
            maker for number in reductions if not self._runs.reduces(number) for maker in self._runs.all_makers(number)
        }
        wrong = [
            number
            for number in reductions
            if number not in inner and not self._is_right(self._runs.relation(number), True)
        ]
        return [(number, True) for number in wrong] or [(number, False) for number in numbers]

    def _wrong_operands(self, number: int, *, whole: bool) -> list[tuple[int, bool]]:
        """The operands of an operation that are made up wrongly, and that some operation has made.

        With each, whether it is to be the same on all replicas: what something is divided by always is.
        """
        found: list[tuple[int, bool]] = []
        for place in range(len(self._runs.record(number).operands)):
            makers, of_whole = self._runs.makers_of(number, place), whole or self._runs.divides(number, place)
            relation = self._runs.operand(number, place)
            cut = place > 0 and self._runs.cuts_sum(number)
            if makers and not (self._is_right(relation, of_whole) or self._runs.is_own_index(number, place) or cut):
                found.append((place, of_whole))
                if self._runs.is_between(number, place) and self._runs.relation(makers[0]).good:
                    self.between[number] = makers[0], relation
        return found
