"""Tells which values of a step depend on each replica's own rows, whatever their numbers are in this batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxtribute import Variable
from jaxtribute._src.addons.verify.catalogue import CATALOGUE
from jaxtribute._src.addons.verify.culprit import Culprit
from jaxtribute._src.addons.verify.holding import is_rows
from jaxtribute._src.addons.verify.machine import RANDOM
from jaxtribute._src.addons.verify.operations import is_key, key_numbers
from jaxtribute._src.addons.verify.pairing import Runs
from jaxtribute._src.addons.verify.relations import Kind, relate
from jaxtribute._src.addons.verify.sources import Place
from jaxtribute._src.addons.verify.stage import Outcome

_JOINS = "all_gather", "strategy.", "pmax", "pmin"
"""Beginnings of the names of operations, besides sums, whose results are the same on all replicas."""


def is_joined(runs: Runs, number: int) -> bool:
    """True if an operation's results are the same on all replicas, whatever it is given."""
    return runs.is_sum(number) or runs.record(number).name.startswith(_JOINS)


def firsts(variable: Any) -> bool:
    """True for a variable of which the first replica's value counts; Keras brings its own together before."""
    return variable.aggregation.name == "ONLY_FIRST_REPLICA" and variable.followers is None and not is_rows(variable)


def of_own_rows(runs: Runs) -> set[int]:
    """The operations whose results depend on each replica's own rows, before anything brings replicas together."""
    return _made_of_rows(runs, joined=False)


def of_rows(runs: Runs) -> set[int]:
    """The operations whose results depend on rows, of this replica or of others."""
    return _made_of_rows(runs, joined=True)


def _made_of_rows(runs: Runs, *, joined: bool) -> set[int]:
    tape = runs.tape
    rows = {
        id(value)
        for key, value in tape.inputs.items()
        if relate(value, runs.other_inputs(key), runs.arrangement).kind is Kind.ROWS
    }
    found: set[int] = set()
    for number, record in enumerate(tape.records):
        if not joined and is_joined(runs, number):
            continue
        makers = runs.all_makers(number)
        if not found.isdisjoint(makers) or any(tape.is_of(value, rows) for value in record.operands):
            found.add(number)
    return found


def picks_replica(runs: Runs, number: int) -> bool:
    """True if an operation depends on which replica it is, by more than what it has made of rows, and rightly.

    A row's number in the whole batch begins with the replica's, such as for a mask of the first rows of all.
    """
    rows = of_rows(runs)
    seen: set[int] = set()
    todo = runs.all_makers(number)
    while todo:
        maker = todo.pop()
        if runs.record(maker).name == "axis_index":
            return True
        relation = runs.relation(maker)
        if maker not in seen and not (maker in rows and relation.good and relation.kind is not Kind.SKIPPED):
            todo += runs.all_makers(maker)
        seen.add(maker)
    return False


def taken_of_one(runs: Runs, one: Outcome, found: Outcome) -> Iterator[Culprit]:
    """The first variable that is given what the first replica makes of its own rows, though the numbers agree here."""
    own = of_own_rows(runs)
    for variable, value in one.written.items():
        made = [number for number in runs.makers(value) if number in own]
        if made and firsts(variable):
            record, line = runs.record(made[0]), found.lines.get(variable)
            place = record.place or line
            elsewhere = None if place is None or line is None or place.line == line.line else line
            yield Culprit(CATALOGUE["one-replica"], place, elsewhere, record.name, instead=give_the_same(variable))
            return


def has_own_key(runs: Runs, draw: int) -> bool:
    """True if the replicas draw by different keys."""
    keys = {key_numbers(other.operands[0]).tobytes() for other in runs.others(draw) if other is not None}
    return len(keys) > 1


def own_numbers(runs: Runs) -> Iterator[Place]:
    """Gives the lines that draw one set of numbers for the whole batch, of another key on each replica."""
    size = runs.arrangement.replicas
    for number, record in enumerate(runs.tape.records):
        if record.name not in RANDOM or record.place is None:
            continue
        others = [other for other in runs.others(number) if other is not None]
        shapes = {getattr(other.results[0], "shape", None) for other in (record, *others)}
        if has_own_key(runs, number) and len(others) == size and len(shapes) == 1 and not is_key(record.results[0]):
            yield record.place


def give_the_same(variable: Variable, part: str = "") -> str:
    """Returns what to write for a variable that is to be given the same on all replicas.

    Args:
      variable: the variable.
      part: the expression of what a replica's rows add up to, if it is known.
    """
    name = variable.name.removesuffix(":0")
    sums = f", here {part}" if part else ""
    keeps = "" if variable.aggregation.name != "SUM" else f" Make {name} with aggregation='mean': it is the same on all"
    context = "jd.get_replica_context()"
    return (
        f"give {name} what is the same on all replicas: all-reduce what comes of this replica's rows alone{sums}, "
        "before anything else is added or compared, such as the old value. Of parts of a sum total = "
        f"{context}.all_reduce('SUM', part); of a mean the sum of its rows, by {context}.all_reduce('SUM', "
        f"x.shape[0]); of a truth {context}.all_reduce('SUM', jnp.where(truth, 1, 0)) > 0; of an argmax "
        f"what it compares.{keeps}"
    )
