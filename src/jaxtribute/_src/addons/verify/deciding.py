"""Finds what each replica has for itself, a condition or random numbers, where it makes what all replicas share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from jaxtribute._src.addons.verify.catalogue import CATALOGUE
from jaxtribute._src.addons.verify.choices import COMPARISONS, HANDED
from jaxtribute._src.addons.verify.culprit import Culprit
from jaxtribute._src.addons.verify.depending import firsts, has_own_key, is_joined, taken_of_one
from jaxtribute._src.addons.verify.holding import is_rows
from jaxtribute._src.addons.verify.machine import RANDOM, Branch
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute._src.addons.verify.pairing import Runs
from jaxtribute._src.addons.verify.relations import Kind, relate
from jaxtribute._src.addons.verify.sources import is_theirs
from jaxtribute._src.addons.verify.stage import Outcome


def asks_more(found: Outcome) -> bool:
    """True if a step has conditions, random numbers or variables by which replicas may part."""
    return found.private or any(tape.taken for tape in found.tapes) or any(map(firsts, found.written))


def decided(runs: Runs, one: Outcome, found: Outcome, state: Collection[str], held: Collection[Any]) -> list[Culprit]:
    """The conditions of a step that is right as long as all replicas decide alike: one for each line.

    Args:
      runs: both runs.
      one: that on one device.
      found: that on replicas; both have kept what they computed.
      state: the paths of results that are the next call's arguments.
      held: what the variables held before.
    """
    # Of a variable the strategy itself refuses such values.
    apart = [path for path in state if isinstance(found.outputs.get(path), tuple)]
    own = [one.outputs[path] for path in apart]
    shared = [
        one.outputs[path]
        for path in apart
        if relate(one.outputs[path], found.outputs[path], runs.arrangement).kind is Kind.SAME
    ]
    culprits: dict[str, Culprit] = {}
    for number in _behind(runs, [number for value in own for number in runs.makers(value)]):
        if getattr(runs.record(number).results[0], "dtype", None) == np.bool_:
            continue  # a part of a condition
        for condition in filter(lambda maker: _is_truth(runs, maker), runs.all_makers(number)):
            record, place = runs.record(condition), runs.record(number).place or runs.record(condition).place
            if place is None or not is_theirs(place.file) or not _is_own(runs, condition):
                continue
            others = [other.results[0] for other in runs.others(condition) if other is not None]
            culprit = Culprit(
                CATALOGUE["decided-by-replica"],
                place,
                None if record.place == place else record.place,
                record.name,
                record.results[0],
                others,
            )
            culprits.setdefault(str(place), culprit)
    return (
        list(culprits.values())
        or list(_early(runs))
        or list(_shared_choices(runs, set(map(id, held))))
        or list(_own_draws(runs, one, found))
        or list(_drifting(runs, shared))
        or list(taken_of_one(runs, one, found))
    )


def parting(one: Outcome, found: Outcome, branches: Collection[Branch]) -> list[Branch]:
    """Those of the branches of which each replica decides by what it has of its own.

    Args:
      one: the run on one device.
      found: that on replicas; both have kept what they computed.
      branches: the branches.
    """
    runs = Runs(one, found)

    def is_own(branch: Branch) -> bool:
        asked = one.tapes[0].asked.get(Branch(branch.place, branch.count), ())
        makers = [number for value in asked for number in runs.makers(value)]
        # A replica that has nothing to count has a branch of its own for that.
        return any(_is_own(runs, number) and not _is_guard(runs, number) for number in makers)

    return [branch for branch in branches if is_own(branch)]


def _is_guard(runs: Runs, condition: int) -> bool:
    """True for a condition that asks for sums that are 0 only where there is nothing to add up, such as counts."""
    asked = [one for one in _behind(runs, [condition]) if _is_truth(runs, one) and runs.record(one).name in COMPARISONS]
    return bool(asked) and all(_is_of_nothing(runs, one) for one in asked)


def _is_of_nothing(runs: Runs, comparison: int) -> bool:
    zeros = [not np.any(value) for value in runs.record(comparison).operands]
    if sum(zeros) != 1:
        return False
    makers = list(runs.makers_of(comparison, zeros.index(False)))
    while makers and all(runs.record(one).name in HANDED for one in makers):
        makers = [other for one in makers for other in runs.makers_of(one, 0)]
    sums = [runs.record(one) for one in makers]
    return bool(sums) and all(
        one.name == "reduce_sum" and np.min(np.asarray(one.operands[0]), initial=0) >= 0 for one in sums
    )


def _early(runs: Runs) -> Iterator[Culprit]:
    """The first choice among gradients by what each replica has of its own, before they are reduced."""
    for number, record in enumerate(runs.tape.records):
        if record.name != "select_n" or record.backwards or record.place is None or not is_theirs(record.place.file):
            continue
        makers = [maker for place in range(1, len(record.operands)) for maker in runs.makers_of(number, place)]
        if not any(runs.from_backward(maker) and runs.relation(maker).kind is not Kind.SAME for maker in makers):
            continue
        behind = set(_behind(runs, list(runs.makers_of(number, 0))))
        truths = [one for one in behind if _is_truth(runs, one) and _is_own(runs, one)]
        if truths and any(map(runs.from_backward, behind)):
            condition = runs.record(max(truths))
            elsewhere = None if condition.place == record.place else condition.place
            yield Culprit(CATALOGUE["gradient-before-reduction"], record.place, elsewhere, record.name)
            return


def _shared_choices(runs: Runs, held: set[int]) -> Iterator[Culprit]:
    """The first choice between values of the variables alone, by what each replica has of its own."""
    for number, record in enumerate(runs.tape.records):
        if record.name != "select_n" or record.backwards or record.place is None or not is_theirs(record.place.file):
            continue
        places = range(1, len(record.operands))
        if not all(runs.operand(number, place).kind is Kind.SAME for place in places):
            continue
        # Numbers, as of a count of the replicas that object, are no state.
        makers = [maker for place in places for maker in runs.makers_of(number, place)]
        given = [*record.operands[1:], *(value for one in runs.upstream(makers) for value in runs.record(one).operands)]
        truths = [one for one in _behind(runs, list(runs.makers_of(number, 0))) if _is_truth(runs, one)]
        own = [one for one in truths if _is_own(runs, one)]
        if own and not held.isdisjoint(map(id, given)):
            condition = runs.record(max(own))
            elsewhere = None if condition.place == record.place else condition.place
            yield Culprit(CATALOGUE["decided-by-replica"], record.place, elsewhere, record.name)
            return


def _own_draws(runs: Runs, one: Outcome, found: Outcome) -> Iterator[Culprit]:
    """The first draw of other numbers on each replica that becomes a variable's value, one number for each drawn."""
    drawn: dict[int, int] = {}
    for number, record in enumerate(runs.tape.records):
        behind = [maker for maker in runs.all_makers(number) if maker in drawn]
        size = np.size(record.results[0]) if record.results and not is_key(record.results[0]) else 0
        if record.name in RANDOM:
            others = [other for other in runs.others(number) if other is not None]
            if has_own_key(runs, number) and size > 1 and all(np.size(other.results[0]) == size for other in others):
                drawn[number] = number
        elif behind and not record.backwards and size == np.size(runs.record(behind[0]).results[0]):
            kinds = {runs.operand(number, place).kind for place in range(len(record.operands))}
            # What is mixed with rows, or with all other numbers, estimates something.
            if record.name != "dot_general" and kinds <= {Kind.SAME, Kind.SKIPPED}:
                drawn[number] = drawn[behind[0]]
    for variable, value in one.written.items():
        made = [drawn[number] for number in runs.makers(value) if number in drawn]
        shared = not is_rows(variable) and variable.aggregation.name != "ONLY_FIRST_REPLICA"
        if made and shared:
            yield Culprit(CATALOGUE["own-random-numbers"], runs.record(made[0]).place, found.lines.get(variable))
            return


def _drifting(runs: Runs, states: Sequence[Any]) -> Iterator[Culprit]:
    """The first draw of other numbers on each replica that becomes part of a state, which all should share."""
    for value in states:
        for number in _behind(runs, list(runs.makers(value))):
            if runs.record(number).name in RANDOM and has_own_key(runs, number):
                yield Culprit(CATALOGUE["own-random-numbers"], runs.record(number).place, None)
                return


def _behind(runs: Runs, numbers: list[int]) -> Iterator[int]:
    """Gives the operations that values come from, without going through what joins replicas."""
    seen: set[int] = set()
    todo = list(numbers)
    while todo:
        number = todo.pop()
        if number in seen or is_joined(runs, number):
            continue
        seen.add(number)
        yield number
        todo += runs.all_makers(number)


def _is_truth(runs: Runs, number: int) -> bool:
    value = runs.record(number).results[0]
    return getattr(value, "dtype", None) == np.bool_ and not np.ndim(value)


def _is_own(runs: Runs, condition: int) -> bool:
    """True if a replica's own numbers say what a condition is."""
    return any(runs.relation(number).kind not in (Kind.SAME, Kind.SKIPPED) for number in _behind(runs, [condition]))
