"""Values that all replicas have as a whole and that are added up all the same, such as a loss of gathered rows."""

from __future__ import annotations

import ast
from collections.abc import Callable

import numpy as np

from jaxtribute._src.addons.verify.culprit import Culprit
from jaxtribute._src.addons.verify.depending import is_joined, of_own_rows, of_rows
from jaxtribute._src.addons.verify.pairing import ADDS, HANDED, Runs
from jaxtribute._src.addons.verify.relations import Kind
from jaxtribute._src.addons.verify.sources import is_called_by_optimizer, leaving
from jaxtribute.extending import Programs

WHOLE = "whole-on-each-replica"
_LINEAR = frozenset({*ADDS, *HANDED, "neg", "reduce_sum", "slice", "concatenate", "copy"})
"""Operations that make a sum of a sum, whichever of their operands it is."""


def added_whole(runs: Runs, value: int, sum_: int) -> tuple[str, int, int | None] | None:
    """The pattern and the operations to blame for a value that is the same on all replicas, and is added up.

    Args:
      runs: both runs.
      value: the operation that makes the value, or a gradient; the sum itself if that belongs to a derivative.
      sum_: the operation that adds it up.

    Returns:
      None if no rows have gone into the value: it is a term of the variables alone.
    """
    if runs.record(value).backwards or runs.from_backward(value):
        loss = _loss(runs, value, sum_)
        if loss is None:
            return None
        value = loss
    sums = _sums(runs, value, of_rows(runs))
    if sums:
        before = max(sums)
        # What to change is the function's own sum.
        return ("reduced-twice", before, sum_) if is_of_function(runs, before) else ("reduced-twice", sum_, before)
    return None if value in of_own_rows(runs) or not _joins(runs, value) else (WHOLE, value, None)


def is_of_function(runs: Runs, number: int) -> bool:
    """True for an operation of a function that an optimizer was given, whose results it reduces."""
    other = runs.other(0, number)
    todo = [] if other is None or other.eqn is None else [other.eqn]
    while todo:
        eqn = todo.pop()
        if is_called_by_optimizer(eqn):
            return True
        # A loop that was followed as one operation.
        todo += [one for program in Programs.programs_in(eqn) for one in Programs.opened(program).eqns]
    return False


def place_whole(runs: Runs, culprit: Culprit, value: int) -> Culprit:
    """Has a culprit tell the line that a whole value leaves from, and the one that has made it whole."""
    record = runs.record(value)
    joined = runs.record(max(_joins(runs, value)))
    if record.eqn is not None and joined.eqn is not None:
        inside = record.derived and not joined.derived
        culprit.place = leaving(record.eqn, joined.eqn, inside=inside) or culprit.place
    if culprit.place is not None:
        elsewhere = joined.place
        culprit.elsewhere = None if elsewhere is None or elsewhere.line == culprit.place.line else elsewhere
        culprit.part = _divisible(culprit.place.expression)
    return culprit


def _divisible(text: str) -> str:
    """An expression that can be divided."""
    try:
        single = isinstance(ast.parse(text, mode="eval").body, ast.Call | ast.Name | ast.Attribute | ast.Subscript)
    except SyntaxError:
        return ""
    return text if single else f"({text})"


def _joins(runs: Runs, value: int) -> list[int]:
    """The last operations behind a value that bring rows of replicas together; a reduced gradient is none of them."""
    rows = of_rows(runs)
    found: list[int] = []
    seen: set[int] = set()
    todo = [value]
    while todo:
        number = todo.pop()
        if number in seen:
            continue
        seen.add(number)
        makers = runs.all_makers(number)
        if is_joined(runs, number) and not runs.after_sum(number):
            found += [number] if number in rows and not any(map(runs.from_backward, makers)) else []
        else:
            todo += makers
    return found


def _sums(runs: Runs, value: int, rows: set[int]) -> list[int]:
    """The sums over the replicas that a value is a multiple of, or a sum of; none if more is made of them.

    Variables that a reduced gradient was added to are no gradient.
    """
    found: list[int] = []
    todo = [(value, False)]
    while todo:
        number, mixed = todo.pop()
        record = runs.record(number)
        if runs.reduces(number):
            gradient = any(map(runs.from_backward, runs.all_makers(number)))
            found += [number] if number in rows and not (mixed and gradient) else []
            continue
        places = range(len(record.operands))
        made = [place for place in places if not rows.isdisjoint(runs.makers_of(number, place))]
        linear = (
            record.name in _LINEAR or (record.name == "mul" and len(made) < 2) or (record.name == "div" and 0 in made)
        )
        if number in rows and not (linear and made):
            return []
        mixed = mixed or (
            record.name in ADDS and any(np.any(record.operands[one]) for one in places if one not in made)
        )
        made = made[:1] if record.name == "div" else made
        todo += [(maker, mixed) for place in made for maker in runs.makers_of(number, place)]
    return found


def _loss(runs: Runs, gradient: int, sum_: int) -> int | None:
    """The number, the same on all replicas, of which a gradient is the derivative."""
    begun = _begun(runs, gradient)
    loss: int | None = None
    after: set[int] = set()
    for number, record in enumerate(runs.tape.records[:sum_]):
        if not record.derived or not (begun(number) or after.intersection(runs.all_makers(number))):
            continue
        # Also by way of a gradient within the loss.
        after.add(number)
        if not (record.backwards or np.ndim(record.results[0])) and runs.relation(number).kind is Kind.SAME:
            loss = number
    return loss


def _begun(runs: Runs, gradient: int) -> Callable[[int], bool]:
    """Tells the operations on the way forward that a derivative begins with."""
    record = runs.record(gradient)
    if is_joined(runs, gradient):
        return lambda number: is_joined(runs, number) and runs.record(number).place == record.place
    places = {runs.record(number).place for number in _first_derived(runs, gradient)}
    return lambda number: runs.record(number).place in places


def _first_derived(runs: Runs, gradient: int) -> list[int]:
    """The first operation that is made to differentiate on the way to a gradient."""
    seen: set[int] = set()
    todo = [gradient]
    while todo:
        number = todo.pop()
        if number not in seen:
            seen.add(number)
            todo += [one for one in runs.all_makers(number) if runs.record(one).backwards or number == gradient]
    derived = [number for number in seen if runs.record(number).backwards]
    # Not what is zero where nothing else is known.
    begin = [one for one in derived if not runs.all_makers(one) and any(map(np.any, runs.record(one).operands))]
    first = min(begin or derived, default=0)
    # The derivative of a difference begins with what is no part of the term.
    alike = any(
        runs.record(one).place == runs.record(first).place and runs.relation(one).kind is Kind.NONE
        for one in range(first)
        if not runs.record(one).backwards
    )
    return derived if alike else derived and [first]
