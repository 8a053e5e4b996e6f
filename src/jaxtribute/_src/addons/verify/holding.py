"""The values of variables, in float64 and for any number of replicas; and what a reduction makes of such values."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxtribute import ReduceOp, Variable, VariableSynchronization
from jaxtribute._src.addons.verify.machine import CannotVerify
from jaxtribute._src.addons.verify.operations import as_wide


def means_by_rows(strategy: Any) -> bool:
    """True if a mean over the replicas weighs each by its rows of the batch."""
    return getattr(strategy.extended, "means_by_rows", False)


def total_of(
    parts: Sequence[Any], op: ReduceOp, axis: Any, idle: Sequence[int] = (), rows: Sequence[int] | None = None
) -> Any:
    """Reduces the replicas' values as `strategy.reduce` does.

    Args:
      parts: the values.
      op: the reduction.
      axis: what is reduced within each replica.
      idle: the replicas without a row.
      rows: by which a mean weighs the replicas; None for all alike.

    Raises:
      CannotVerify: they have different shapes, and no axis is reduced; an operation besides sums and means.
    """
    if op not in (ReduceOp.SUM, ReduceOp.MEAN):
        raise CannotVerify(f"strategy.reduce was given {op}")
    counted = [part for number, part in enumerate(parts) if number not in idle]
    if axis is not None:
        axes = tuple(range(parts[0].ndim))[axis] if isinstance(axis, int) else tuple(axis)
        sums = [np.sum(np.asarray(part), axis=axes) for part in parts]
        sizes = [np.asarray(part).size for part in parts]
        count = sum(size // max(np.asarray(total).size, 1) for size, total in zip(sizes, sums, strict=True))
    else:
        if len({np.shape(part) for part in parts}) > 1:
            raise CannotVerify("strategy.reduce was given values of different shapes")
        sums = counted if op is ReduceOp.MEAN else [np.nan_to_num(part, nan=0.0) for part in parts]
        sums, count = sums if idle else parts, len(counted)
        if rows is not None and op is ReduceOp.MEAN:
            weights = [each for each in rows if each]
            sums, count = [one * each for one, each in zip(sums, weights, strict=True)], sum(weights)
    total = np.sum(np.stack(sums), axis=0)
    return total if op is ReduceOp.SUM else total / count


def variables_of(strategy: Any) -> dict[Variable, None]:
    """All variables that lie on a strategy's replicas: a step that is no program does not tell which it uses."""
    mesh = strategy.extended.mesh
    known = [one for one in gc.get_objects() if issubclass(type(one), Variable)]
    own = (one for one in known if getattr(one, "distribute_strategy", None) is strategy)
    return {one: None for one in own if one.policy.mesh == mesh}


def snapshot(variable: Variable) -> Any:
    """Copies a variable in float64: its value, or the replicas' rows."""
    if variable.policy.form == "rows":
        return as_wide(np.asarray(variable.stored))
    value = as_wide(np.asarray(variable.read_value()))
    return value[None] if variable.synchronization is VariableSynchronization.ON_READ else value


def is_rows(variable: Variable) -> bool:
    """True if each replica has a value of its own."""
    return variable.policy.form == "rows" or variable.synchronization is VariableSynchronization.ON_READ


def combined(variable: Variable, rows: Any) -> Any:
    """The one value of the replicas' rows; None if they have none."""
    how = variable.aggregation.name
    if how == "NONE":
        return None
    return {"SUM": lambda: rows.sum(0), "MEAN": lambda: rows.mean(0)}.get(how, lambda: rows[0])()


def rows_for(variable: Variable, value: Any, replicas: int) -> Any:
    """The snapshot of a variable, for so many replicas."""
    if not is_rows(variable):
        return value
    if variable.aggregation.name == "SUM":
        rows = np.zeros((replicas, *value.shape[1:]), value.dtype)
        rows[0] = value.sum(0)
        return rows
    one = value.mean(0) if variable.aggregation.name == "MEAN" else value[0]
    return np.broadcast_to(one, (replicas, *np.shape(one))).astype(value.dtype)
