"""Writes to variables by two replicas, or by code of both, for two libraries."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

START = [1, 6, 8]
WRITES = ("assign", "assign_add", "assign_sub")
SCATTERED = tuple(f"scatter_{name}" for name in ("add", "sub", "mul", "div", "min", "max", "update"))


class Case(NamedTuple):
    """One write: by which method, to what kind of variable, in a replica function or outside."""

    place: str
    method: str
    dtype: str
    synchronization: str
    aggregation: str


CASES = {
    "/".join(parts): Case(*parts)
    for parts in product(
        ("replica", "cross"),
        WRITES + SCATTERED,
        ("float32", "int32"),
        ("ON_WRITE", "ON_READ"),
        ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"),
    )
}


def write(case: Case, variable: Any, replica: Any, array: Callable[..., Any], rows: Callable[..., Any]) -> None:
    """Has a replica write what is its own, or code of all replicas what the first would.

    Args:
      case: the write.
      variable: the variable.
      replica: the replica's number; 0 for code of all.
      array: makes an array of numbers, of a dtype.
      rows: makes indexed slices of values and indices.
    """
    method = getattr(variable, case.method)
    if case.method in WRITES:
        method(array([replica + 1, 2, 4 * replica], case.dtype))
    else:
        method(rows(array([replica + 2, 3], case.dtype), array([replica, 2], "int32")))
