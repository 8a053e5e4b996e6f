"""Tells which values of a step are rounding alone: they say nothing of what is right or wrong."""

from __future__ import annotations

import numpy as np

from jaxtribute._src.addons.verify.machine import Record, Tape
from jaxtribute._src.addons.verify.operations import is_key

_CANCELLED = 1e-11
"""Of what was added up: a sum that is smaller than that has cancelled."""
_SUMS = frozenset({"reduce_sum", "add", "add_any", "sub", "dot_general"})
_KEEPS = frozenset(
    "mul div integer_pow square sqrt abs neg sign dot_general transpose reshape broadcast_in_dim squeeze reduce_sum "
    "convert_element_type psum psum_invariant jd_sum slice pad concatenate".split()
)
"""Operations that make of rounding (of what they divide, or of one factor) rounding."""
_OF_ALL = frozenset({"add", "add_any", "sub", "select_n", "concatenate", "psum", "psum_invariant", "jd_sum"})


def rounding(tape: Tape) -> set[int]:
    """The numbers of the operations whose results are rounding alone.

    Such is the gradient of a bias before a normalization, or of an attention's key bias, and what is made of it.
    """
    found: set[int] = set()
    for number, record in enumerate(tape.records):
        if (
            len(record.results) == 1
            and _is_real(record.results[0])
            and (_cancels(record) or _is_made(tape, record, found))
        ):
            found.add(number)
    return found


def _cancels(record: Record) -> bool:
    if record.name not in _SUMS or not record.operands:
        return False
    sizes = [_largest(operand) for operand in record.operands]
    given = sizes[0] * sizes[-1] if record.name == "dot_general" else max(sizes)
    return 0 < _largest(record.results[0]) <= _CANCELLED * given


def _is_made(tape: Tape, record: Record, found: set[int]) -> bool:
    if not found or record.name not in _KEEPS | _OF_ALL:
        return False
    operands = record.operands[:1] if record.name == "div" else record.operands[record.name == "select_n" :]
    made = [tape.makers.get(id(operand), ()) for operand in operands]
    noise = [bool(makers) and found.issuperset(makers) for makers in made]
    others = [value for value, one in zip(operands, noise, strict=True) if not one]
    return any(noise) and not (record.name in _OF_ALL and any(map(_largest, others)))


def _is_real(value: object) -> bool:
    return not is_key(value) and getattr(value, "dtype", np.dtype(bool)).kind == "f"


def _largest(value: object) -> float:
    if not _is_real(value):
        return 0.0
    array = np.abs(np.asarray(value))
    return float(np.max(array, initial=0.0, where=np.isfinite(array)))
