"""Tells whether a step that is given no batch computes with arrays that its program closes over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxtribute._src.addons.verify.machine import RANDOM
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute._src.addons.verify.pairing import Runs

_COMBINES = "reduce", "dot_general", "conv_general", "arg", "scan", "while", "scatter"
"""Beginnings of the names of operations that make something of many numbers."""


def is_own(runs: Runs, wrong: Sequence[int]) -> bool:
    """True if each replica has something for itself in what is wrong: what it draws, its number, or its own values."""
    tape = runs.tape
    given = ((value, runs.other_inputs(key)) for key, value in tape.inputs.items() if not is_key(value))
    own = {id(value) for value, others in given if any(not _equal(other, others[0]) for other in others)}
    for number in _behind(runs, wrong):
        record = tape.records[number]
        if record.name in RANDOM or record.name == "axis_index" or not own.isdisjoint(map(id, record.operands)):
            return True
    return False


def closed_over(runs: Runs, wrong: Sequence[int]) -> int | None:
    """The operation that first takes what seems to be the batch, of arrays that the program closes over.

    Args:
      runs: both runs.
      wrong: the operations that made what depends on the number of replicas.

    Returns:
      Its number; None if the program closes over nothing that becomes a sum or the like in what is wrong.
    """
    tape = runs.tape
    behind = _behind(runs, wrong)
    combined: set[int] = set()

    for number in sorted(behind, reverse=True):
        if number in combined or tape.records[number].name.startswith(_COMBINES):
            combined.update((number, *_makers(runs, number)))
    uses = {
        number: arrays
        for number in sorted(combined & behind)
        if (arrays := [tape.constants[id(one)] for one in tape.records[number].operands if id(one) in tape.constants])
        and tape.records[number].place is not None
    }
    # What goes together, as inputs and targets, has as many rows.
    lengths = Counter(length for _, length in {array for arrays in uses.values() for array in arrays})
    return max(uses, key=lambda number: (max(lengths[length] for _, length in uses[number]), -number), default=None)


def _behind(runs: Runs, wrong: Sequence[int]) -> set[int]:
    """The operations that something comes from; of all, where the code around the replicas has made it."""
    seen: set[int] = set()
    todo = list(wrong) or list(range(len(runs.tape.records)))
    while todo:
        number = todo.pop()
        if number not in seen:
            seen.add(number)
            todo += _makers(runs, number)
    return seen


def _makers(runs: Runs, number: int) -> list[int]:
    """The makers of an operation's operands; not those of a choice, such as the mask of a dropout."""
    record = runs.record(number)
    first = 1 if record.name == "select_n" else 0
    return [maker for place in range(first, len(record.operands)) for maker in runs.makers_of(number, place)]


def _equal(one: Any, other: Any) -> bool:
    return np.shape(one) == np.shape(other) and np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")
