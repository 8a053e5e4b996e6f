"""Finds operations in which rows of a batch meet, or are chosen by their places: they need the whole batch.

Two programs are compared, as in `rows.py`, whose batches have different numbers of rows. What runs along a whole batch,
or along several in a row (two views of the same rows, say), treats all rows alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxtribute.extending import JaxprEqn, Programs, Tracer

Numbers = Sequence[tuple[Any, Any] | None]
"""For each operand its value in both programs, if it is a small constant."""
PARTS = "parts of the batch"
_ORDERED = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"})
_TAKING = frozenset({"slice", "dynamic_slice", "gather"})


def taken(one: JaxprEqn, other: JaxprEqn, axis: int, numbers: Numbers, rows: tuple[int, int]) -> tuple[str, int] | None:
    """The rows that an operation takes by their places, along an axis of its first operand; None if it takes none so.

    Args:
      one: an operation of the first program.
      other: the same of the second one.
      axis: an axis that lies along the rows.
      numbers: what is known of the operands.
      rows: the numbers of rows of a batch in both programs.

    Returns:
      The rows in words, and the highest of their numbers that both programs name, or 0.
    """
    if one.primitive.name not in _TAKING:
        return None
    pairs = zip((one, other), (0, 1), rows, strict=True)
    (first, spans), (second, spans_too) = (_range(eqn, axis, numbers, which, count) for eqn, which, count in pairs)
    if first is None or second is None or (spans and spans == spans_too):
        return None
    start, limit, stride = first
    # Behind a number of all rows, as in `x[-1]`, it is another one in both programs.
    fixed = start == second[0] and limit == second[1] and limit - start == 1
    if stride != 1:
        return f"every {stride}th row", 0
    if limit - start == 1 == second[1] - second[0]:
        return (f"row {start}" if fixed else "a row counted from the end"), start if fixed else 0
    return "some rows by their numbers", 0


def ordered(eqn: JaxprEqn, along: Sequence[int]) -> str | None:
    """The use that an operation makes of the rows' order, in words; `along` are the axes that lie along the rows."""
    name, params = eqn.primitive.name, eqn.params
    if name == "rev" and set(params["dimensions"]) & set(along):
        return "the rows in reverse order"
    if name == "sort" and params["dimension"] in along:
        return "the rows in the order of their values"
    if name in _ORDERED and params["axis"] in along:
        return "sums over the rows before each"
    return None


def placed(one: JaxprEqn, axis: int, numbers: Numbers) -> str | None:
    """The rows that an operation writes to by their numbers, in words, along an axis of its first operand."""
    if one.primitive.name.startswith("scatter"):
        dims, known = one.params["dimension_numbers"].scatter_dims_to_operand_dims, numbers[1]
        pair = None if known is None or axis not in dims else known
    elif one.primitive.name == "dynamic_update_slice":
        whole = Programs.aval(one.invars[0]).shape[axis] == Programs.aval(one.invars[1]).shape[axis]
        pair = None if whole else numbers[2 + axis]
    else:
        return None
    return None if pair is None or not np.array_equal(*pair) else "some rows to write to, by their numbers"


def divided(one: JaxprEqn, axis: int, out: int, rows: tuple[int, int]) -> str | None:
    """The parts that a `reshape` makes of a batch, in words; rows lie along `axis`, and along `out` of the result."""
    if one.primitive.name != "reshape":
        return None
    before, after = Programs.aval(one.invars[0]).shape, Programs.aval(one.outvars[0]).shape
    # Whole batches one behind the other, such as two views, may become an axis of their own.
    batches, first = before[axis] // rows[0], math.prod(after[:out]) // math.prod(before[:axis])
    return PARTS if after[out] % rows[0] or (first > 1 and batches % first) else None


def from_table(one: JaxprEqn, along: Sequence[Sequence[int]], out: Sequence[int], table: Any, numbers: Numbers) -> bool:
    """True if an operation takes as many rows of a table as the batch has, by their places, and they may differ.

    Args:
      one: the operation.
      along: the axes of its operands that lie along the rows.
      out: those of its result.
      table: its first operand, if that is a constant or a variable.
      numbers: what is known of the operands.
    """
    if one.primitive.name not in ("slice", "dynamic_slice") or table is None or not out or along[0]:
        return False
    (axis, *_) = out
    # A place that is computed may be that of the replica's first row in the whole batch.
    if one.primitive.name == "dynamic_slice" and numbers[1 + axis] is None:
        return False
    if isinstance(table, Tracer):
        return True
    values = np.asarray(table)  # NumPy's: this runs while a program is traced
    return bool(np.any(values != np.take(values, [0], axis)))


def numbers_rows(one: np.ndarray, other: np.ndarray, rows: tuple[int, int]) -> bool:
    """True if a constant has another number for each row of a batch; it may have several batches in a row."""
    for axis, lengths in enumerate(zip(one.shape, other.shape, strict=False)):
        if one.ndim != other.ndim or lengths[0] == lengths[1]:
            continue
        # What is no whole batch is looked at as a whole.
        whole = rows if lengths[0] * rows[1] == lengths[1] * rows[0] and lengths[0] % rows[0] == 0 else lengths
        first, second = (
            np.moveaxis(value, axis, 0).reshape(-1, count, value.size // value.shape[axis])
            for value, count in zip((one, other), whole, strict=True)
        )
        if (first == first[:, :1]).all():
            continue
        # Random numbers are others in the second program: neither the same at first, nor in order.
        again = second[:, : first.shape[1], : first.shape[2]]
        same = again.shape == first.shape and np.array_equal(again, first)
        before, behind = first[:, :-1], first[:, 1:]
        if same or (before <= behind).all() or (before >= behind).all():
            return True
    return False


Range = tuple[int, int, int]


def _range(eqn: JaxprEqn, axis: int, numbers: Numbers, which: int, rows: int) -> tuple[Range | None, Any]:
    """The rows that an operation takes, and the whole batches that these are; None if either is not known."""
    name, params = eqn.primitive.name, eqn.params
    length = Programs.aval(eqn.invars[0]).shape[axis]
    if length % rows:
        return None, None  # something else lies along this axis, too
    if name == "slice":
        start, limit = params["start_indices"][axis], params["limit_indices"][axis]
        stride = (params["strides"] or {axis: 1})[axis]
    else:
        size = params["slice_sizes"][axis]
        if size == length:
            return None, None
        place = 1 + axis
        if name == "gather":
            if tuple(params["dimension_numbers"].start_index_map) != (axis,):
                return None, None
            place = 1
        picked = numbers[place]
        if picked is None or (name == "gather" and size != 1):
            return None, None
        starts = np.asarray(picked[which])
        if starts.size != 1 and np.array_equal(picked[0], picked[1]):
            return (int(starts.min()), int(starts.max()) + 1, 1), None
        if starts.size != 1:
            return None, None
        start, limit, stride = int(starts.item()), int(starts.item()) + size, 1
    whole = stride == 1 and not start % rows and not limit % rows
    return (start, limit, stride), (start // rows, limit // rows) if whole else None
