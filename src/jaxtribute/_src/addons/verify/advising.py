"""The user's own expressions in what a report says to write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxtribute._src.addons.training.loss_objects import is_of_loss_object
from jaxtribute._src.addons.verify.depending import of_own_rows
from jaxtribute._src.addons.verify.machine import Record
from jaxtribute._src.addons.verify.pairing import Runs, is_averaging
from jaxtribute._src.addons.verify.relations import Kind
from jaxtribute._src.addons.verify.sources import innermost

_MEAN = re.compile(r"(?:(?P<rows>.+)\.mean\(\)|(?:jnp|ops|keras\.ops)\.mean\((?P<given>.+)\))$")
_MEANS = frozenset({"local-mean", "mean-of-means"})
_MIXED = frozenset("add sub mul div max min neg clamp convert_element_type select_n broadcast_in_dim reshape".split())
"""Operations that make of a sum and what all replicas share what is no part of a sum any more."""
_SUMS = frozenset({"reduce_sum", "dot_general", "scatter-add", "scatter_add"})
_BOUNDS = frozenset({"max", "min", "mul", "and", "or"})
_REDUCED = frozenset({"batch-statistics", "counted-on-each-replica", "extreme-over-batch", "one-replica"})


def part_of(runs: Runs, pattern: str, number: int, elsewhere: int | None) -> str:
    """Returns the expression that a pattern's advice is about; empty where it is not known.

    Args:
      runs: both runs.
      pattern: the pattern's name.
      number: the operation that is blamed.
      elsewhere: the other one that the report names.
    """
    if pattern in _MEANS:
        return _mean_of_rows(runs, _forward(runs, number))
    if pattern == "default-batch-size":
        return _with_count(runs, runs.record(_forward(runs, number)))
    if pattern == "local-count":
        sums = [one for one in runs.upstream(runs.makers_of(number, 1)) if runs.record(one).name == "reduce_sum"]
        # Of several, each is a part of what is divided by.
        chosen: Sequence[int | None] = [elsewhere] if len(sums) < 2 else []
    elif pattern == "local-total":
        chosen = [one for one in (number, elsewhere) if one is not None and runs.relation(one).kind is Kind.SUM]
        return next((text for one in chosen if (text := own_part(runs, one))), "")
    else:
        # Rows are no statistics of them.
        chosen = [number] if pattern in _REDUCED and not runs.scaled_axes(number) else []
    return next((text for one in chosen if one is not None and (text := _expression(runs, one))), "")


def own_part(runs: Runs, number: int) -> str:
    """The expression of what a replica's rows add up to, without what all replicas share: empty if it is not known."""
    own = of_own_rows(runs)
    begun = number
    while runs.record(number).name in _MIXED:
        record = runs.record(number)
        made = [place for place in range(len(record.operands)) if own.intersection(runs.makers_of(number, place))]
        if len(made) != 1:
            break
        (number,) = runs.makers_of(number, made[0])[:1]
    # A sum within a loss is differentiated; what is made of it later is another one.
    if runs.record(number).name not in _SUMS or (runs.record(number).derived and not runs.record(begun).derived):
        return ""
    return _expression(runs, number)


def whole_part(runs: Runs, number: int) -> str:
    """The whole expression that an operation belongs to, also where its `initial` comes in behind it."""
    place = runs.record(number).place
    for user, record in enumerate(runs.tape.records):
        alike = record.place == place and not record.backwards and record.name in _BOUNDS
        if alike and number in runs.all_makers(user):
            number = user
    return _expression(runs, number)


def _forward(runs: Runs, number: int) -> int:
    """The operation of which one is the derivative."""
    record = runs.record(number)
    if not record.backwards:
        return number
    alike = (
        place for place, other in enumerate(runs.tape.records) if not other.backwards and _form(other) == _form(record)
    )
    return next(alike, number)


def _form(record: Record) -> tuple[Any, ...]:
    """An operation's name, and the lines that it comes from: the user's, and a library's own."""
    return record.name, record.place, None if record.eqn is None else innermost(record.eqn)


def _expression(runs: Runs, number: int) -> str:
    """The expression of which an operation is the last one: its value is the operation's."""
    record = runs.record(number)
    if record.place is None or record.backwards or not runs.is_last(number):
        return ""
    return record.place.expression


def _with_count(runs: Runs, record: Record) -> str:
    """A call of `compute_average_loss`, given the count."""
    text = record.place.expression if record.place is not None else ""
    if text and record.eqn is not None and is_of_loss_object(record.eqn):
        sums = (one for one in runs.tape.records if one.name == "reduce_sum" and one.place == record.place)
        ranks = (np.ndim(one.operands[0]) for one in sums if is_averaging(one))
        return _averaged(text, next(ranks, 1), of_object=True)
    if not re.match(r"[\w.]+\(.*\)$", text) or "global_batch_size" in text:
        return ""
    return f"{text[:-1].rstrip(', ')}, global_batch_size=count)"


def _mean_of_rows(runs: Runs, number: int) -> str:
    """A mean of the rows, written as a part of the mean of the batch."""
    record = runs.record(number)
    of_object = record.eqn is not None and is_of_loss_object(record.eqn)
    found = _MEAN.match(_expression(runs, number))
    summed = runs.count_of(runs.makers_of(number, 0))
    text = found and (found["rows"] or found["given"])
    if of_object and record.place is not None:
        text = record.place.expression
    elif not text or re.search(r",(?![^(\[]*[)\]])", text):
        return ""
    if not text or summed is None:
        return ""
    rank = np.ndim(runs.record(summed).operands[0])
    if rank == 0:
        return ""
    return _averaged(text, rank, of_object=of_object) + ("," if of_object else "")


def _averaged(text: str, rank: int, *, of_object: bool) -> str:
    """A call of `compute_average_loss` with losses of so many axes."""
    within = "" if rank == 1 else f".mean(axis={tuple(range(1, rank)) if rank > 2 else 1})"
    text = text if within else _bare(text)
    text = f"({text})" if within and not of_object and not re.fullmatch(r"\w+|\(.*\)", text) else text
    made = ", with reduction=None where the loss object is made" if of_object else ""
    return f"jd.nn.compute_average_loss({text}{within}, global_batch_size=count){made}"


def _bare(text: str) -> str:
    """An expression without parentheses around all of it."""
    depth = 0
    for place, each in enumerate(text):
        depth += (each == "(") - (each == ")")
        if not depth:
            return text[1:-1] if place and place == len(text) - 1 and text[0] == "(" else text
    return text
