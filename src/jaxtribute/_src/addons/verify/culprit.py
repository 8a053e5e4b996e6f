"""`Culprit`: a mistake, its line, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtribute import ReduceOp
from jaxtribute._src.addons.verify.catalogue import CATALOGUE, Pattern
from jaxtribute._src.addons.verify.machine import Record, Tape
from jaxtribute._src.addons.verify.pairing import STEPS_BACK
from jaxtribute._src.addons.verify.relations import Kind, Relation
from jaxtribute._src.addons.verify.sources import Place

UNREDUCED = {
    (Kind.SUM, "MEAN"): "mean-of-sums",
    (Kind.MEAN, "SUM"): "sum-of-means",
    (Kind.SAME, "SUM"): "counted-on-each-replica",
    (Kind.MEAN, "MEAN"): "mean-of-means",
}
"""By what replicas have, and how it is reduced, what is wrong with that."""


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
      backwards: True if the operation belongs to the derivative of the line.
      part: the user's expression that the advice is about, if it is known.
      instead: what to write instead, where the pattern's own words would not help.
      also_in_fit: True if that is so in a step of Keras's `fit`, too.
      guess: True if no operation was found that makes something wrong of what is right.
    """

    pattern: Pattern
    place: Place | None
    elsewhere: Place | None = None
    what: str = ""
    alone: Any = None
    others: list[Any] = field(default_factory=list)
    backwards: bool = False
    part: str = ""
    instead: str = ""
    also_in_fit: bool = False
    guess: bool = False

    def advice(self, *, in_fit: bool = False) -> str:
        """The code to write instead, which in a step of Keras's `fit` may be something else."""
        pattern = self.pattern
        if self.instead and (self.also_in_fit or not in_fit):
            return self.instead
        text = (pattern.in_fit or f"{pattern.advice}{pattern.also_in_fit}") if in_fit else pattern.advice
        return text.replace("{part}", self.part or pattern.part)

    @property
    def places(self) -> list[Place]:
        """The lines that the report names."""
        return [place for place in (self.place, self.elsewhere) if place is not None]

    @property
    def mistake(self) -> tuple[str, str]:
        """The name and the line that two findings of one mistake have in common."""
        return self.pattern.name, str(self.place)


def repeated_draw(record: Record, key: Place | None) -> Culprit:
    """The culprit that draws the same numbers on all replicas; and the line that its key comes from."""
    return Culprit(CATALOGUE["same-random-numbers"], record.place, key, record.name)


def last_line(tape: Tape, record: Record) -> Place | None:
    """The last other line among those that made what an operation was given."""
    todo = [record]
    for _ in range(STEPS_BACK):
        if not todo:
            break
        one = todo.pop(0)
        if one.place is not None and one.place != record.place and one.place.file == getattr(record.place, "file", 0):
            return one.place
        todo += [tape.records[number] for value in one.operands for number in tape.makers.get(id(value), ())]
    return None


def unreduced(op: ReduceOp, relation: Relation, place: Place, one: Any, parts: Sequence[Any]) -> Culprit:
    """The culprit that reduces the replicas' results, outside of the step, as their values do not want it."""
    name = UNREDUCED.get((relation.kind, op.name), "local-total")
    if relation.kind is Kind.SAME:
        name = "sum-of-means"
    return Culprit(CATALOGUE[name], place, None, "", one, list(parts))


def same_mistake(one: Culprit, other: Culprit) -> bool:
    """True if two culprits are one line, or if the second has none: it is what the first leads to."""
    if other.place is None or one.mistake == other.mistake:
        return True
    mine, theirs = ([(place.file, place.line) for place in each.places] for each in (one, other))
    return theirs[0] in mine or (one.pattern is other.pattern and bool(mine) and mine[0] in theirs)
