"""Numbers of a step that have to be others for a condition to turn out the other way.

A choice that is forced may belong to no state of the program: `where(n == 0, 1, n)` without `where(n == 0, 0, x / n)`
behind it, or a norm that is larger than a bound in the one expression and smaller in the next. So not the choice is
changed but the number that decides it, wherever it is computed; every other choice by that number follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxtribute._src.addons.verify.machine import Branch, Key, Record, Tape
from jaxtribute._src.addons.verify.operations import is_key

Changes = dict[Key, Any]
"""By the place in a program of a number what it is instead."""
HANDED = frozenset("convert_element_type reshape squeeze broadcast_in_dim copy stop_gradient reduce_precision".split())
"""Operations that give the number that they are given."""
COMPARISONS = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
"""Comparisons, and their opposites."""
_TURNED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
"""Comparisons with their operands the other way round."""
_FURTHER = 8
"""Distance from a bound up to which whole numbers are looked for that the replicas can share."""


class Expressions:
    """The values that one replica has computed, by the expressions that they come from.

    Args:
      tape: what it has computed.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._made: dict[int, Record] = {}
        self._keys = {id(value): key for key, value in tape.inputs.items()}
        self._names: dict[int, int] = {}
        self._fixed: dict[int, bool] = {}
        self._alike: dict[int, list[Key]] = {}
        for record in tape.records:
            if record.eqn is None:
                continue
            name = hash((record.name, _parameters(record), *map(self.name_of, record.operands)))
            fixed = all(map(self.is_fixed, record.operands))
            for place, value in enumerate(record.results):
                self._made[id(value)] = record
                self._names[id(value)] = hash((name, place))
                self._fixed[id(value)] = fixed
                self._alike.setdefault(self._names[id(value)], []).append((*record.key, place))

    def name_of(self, value: Any) -> int:
        """Names the expression that a value comes from: the names of two values are equal if their expressions are."""
        if id(value) in self._names:
            return self._names[id(value)]
        if id(value) in self._keys:
            return hash(self._keys[id(value)])
        return id(value) if is_key(value) or not self.is_fixed(value) else hash(np.asarray(value).tobytes())

    def is_fixed(self, value: Any) -> bool:
        """True for a constant, and what is made of constants."""
        known = id(value) in self._keys or id(value) in self.tape.makers
        return self._fixed.get(id(value), not known)

    def keys(self, value: Any) -> Sequence[Key]:
        """Returns the places at which a value is computed: all those of its expression; none if it is not known."""
        if id(value) in self._keys:
            return [self._keys[id(value)]]
        return self._alike.get(self._names.get(id(value), 0), ())

    def asked(self, branch: Branch) -> Sequence[Any]:
        """Returns the conditions by which a branch is taken or not."""
        return self.tape.asked.get(Branch(branch.place, branch.count), ())

    def decisive(self, value: Any, wanted: Any) -> Iterator[tuple[Any, Any]]:
        """Gives the numbers to change for a condition to become what is wanted, each with its new value."""
        record = self._made.get(id(value))
        name, operands = (record.name, list(record.operands)) if record is not None else ("", [])
        if name in HANDED and np.size(operands[0]) == 1:
            yield from self.decisive(operands[0], wanted)
        elif name == "clamp":
            yield from self.decisive(operands[1], wanted)
        elif name == "not" and np.asarray(value).dtype == bool:
            yield from self.decisive(operands[0], not wanted)
        elif name in ("and", "or") and np.asarray(value).dtype == bool:
            # All parts have to be as wanted, or one of them has to.
            others = [one for one in operands if bool(one) != bool(wanted)]
            for one in others if (name == "and") == bool(wanted) else others[:1]:
                yield from self.decisive(one, wanted)
        elif record is not None and name in COMPARISONS:
            yield from self._compared(record, value, wanted=bool(wanted))
        else:
            yield value, wanted

    def _compared(self, record: Record, value: Any, *, wanted: bool) -> Iterator[tuple[Any, Any]]:
        relation = record.name if wanted else COMPARISONS[record.name]
        first, second = record.operands
        if self.is_fixed(first):
            first, second, relation = second, first, _TURNED.get(relation, relation)
        new = _beyond(relation, second)
        source = self._source(first)
        if new is None or self.name_of(first) == self.name_of(second) or not self.keys(source):
            yield value, wanted
        else:
            yield source, new

    def _source(self, value: Any) -> Any:
        """The number that a number is handed on from."""
        while True:
            record = self._made.get(id(value))
            if record is None or record.name not in HANDED or np.size(record.operands[0]) != 1:
                return value
            value = record.operands[0]


def ways(tapes: Sequence[Tape], branches: Sequence[Branch]) -> tuple[dict[Branch, list[Changes]], list[Branch]]:
    """Finds the numbers that have to be changed for branches to be taken.

    Args:
      tapes: what one device, and then each replica, has computed.
      branches: the branches.

    Returns:
      By branch what is changed on one device and on each replica; of branches that the same changes lead to the first.
      And those for which no such numbers are known.
    """
    expressions = list(map(Expressions, tapes))
    known: dict[Branch, list[Changes]] = {}
    missed: list[Branch] = []
    for branch in branches:
        if all(one.is_fixed(value) for one in expressions for value in one.asked(branch)):
            continue  # no state leads there
        needed = _way(expressions, branch)
        if needed is None:
            missed.append(branch)
        elif needed not in known.values():
            known[branch] = needed
    return known, missed


def _way(tapes: Sequence[Expressions], branch: Branch) -> list[Changes] | None:
    found: list[Changes] = [{} for _ in tapes]
    asked = [one.asked(branch) for one in tapes]
    if not asked[0] or len({len(one) for one in asked}) > 1:
        return None
    for column in zip(*asked, strict=True):
        several = [list(one.decisive(value, branch.index)) for one, value in zip(tapes, column, strict=True)]
        if len({len(one) for one in several}) > 1:
            return None
        for pairs in zip(*several, strict=True):
            shares = _shared([value for value, _ in pairs], pairs[0][1])
            keys = [one.keys(value) for one, (value, _) in zip(tapes, pairs, strict=True)]
            if shares is None or not all(keys):
                return None
            for change, where, share in zip(found, keys, shares, strict=True):
                change.update(dict.fromkeys(where, share))
    return found


def _parameters(record: Record) -> int:
    params = record.eqn.params if record.eqn is not None else {}
    try:
        return hash(tuple(params.items()))
    except TypeError:
        return hash(str(params))


def _beyond(relation: str, bound: Any) -> Any:
    """A number that is in a relation to a bound; None if there is none to tell."""
    if np.size(bound) != 1 or np.asarray(bound).dtype.kind not in "iuf" or not np.isfinite(bound):
        return None
    bound = np.asarray(bound).reshape(()).item()
    if relation in ("eq", "le", "ge"):
        return bound
    up = relation in ("gt", "ne")
    if isinstance(bound, int):
        return bound + 1 if up else bound - 1
    # A norm, or a number of rows, stays one.
    if bound == 0:
        return 1.0 if up else -1.0
    return bound * 2 if up == (bound > 0) else bound / 2


def _shared(values: Sequence[Any], new: Any) -> list[Any] | None:
    """A number for one device, and what each replica has instead: the same part of it as before.

    Returns:
      None if replicas cannot share the number.
    """
    if any(map(is_key, values)):
        return None
    whole, *parts = (np.asarray(value).reshape(-1)[0] for value in values)
    if isinstance(new, bool) or np.asarray(whole).dtype == bool:
        return [bool(new)] * len(values)
    if whole == 0 or all(part == whole for part in parts):
        return [new] * len(values)
    if np.asarray(whole).dtype.kind == "f":
        return [new, *(new * part / whole for part in parts)]
    way = 1 if new >= 0 else -1
    for wide in range(new, new + _FURTHER * way, way) if new else [0]:
        if all(wide * int(part) % int(whole) == 0 for part in parts):
            return [wide, *(wide * int(part) // int(whole) for part in parts)]
    return None
