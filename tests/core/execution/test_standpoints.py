"""The table of standpoints: what code sees of a variable, and what becomes of its writes, by where the code runs.

A variable has two elements; replicas assign `[10, 11]` and `[20, 21]`, code of all replicas assigns `[6, 8]`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import VariableError
from replicas import STRATEGIES, execute, fraction, here, variable

OLD, OF_EACH, OF_ALL = np.array([1.0, 2.0]), np.array([[10.0, 11.0], [20.0, 21.0]]), np.array([6.0, 8.0])
TOTAL: dict[str, Callable[[Any], Any]] = {
    "SUM": lambda rows: rows.sum(0),
    "MEAN": lambda rows: rows.mean(0),
    "ONLY_FIRST_REPLICA": lambda rows: rows[0],
    "NONE": lambda rows: None,  # nobody knows
}
STORAGES = ("mirrored", "sharded", "central", "on read")
"""Policies: equal copies, slices, one copy on a device of its own, a row for each replica."""

# Rows: where the code runs. Columns: what it reads; what all replicas read afterwards if it assigns, and where it
# cannot: "total" is what the aggregation makes of the replicas' values, "own" each replica's.
TABLE: dict[str, dict[str, tuple[str, str]]] = {
    "all replicas, Python": dict.fromkeys(STORAGES, ("total", "all")),
    "all replicas, compiled": dict.fromkeys(STORAGES, ("total", "all")),
    "a replica, Python": {**dict.fromkeys(STORAGES, ("own", "total")), "on read": ("own", "own")},
    "a replica, compiled": {**dict.fromkeys(STORAGES, ("own", "total")), "on read": ("own", "own")},
    "a merge_call, Python": dict.fromkeys(STORAGES, ("total", "all")),
    "a merge_call, compiled": dict.fromkeys(STORAGES, ("total", "all")),
    "differentiated, Python": dict.fromkeys(STORAGES, ("own", "none")),
    "differentiated, compiled": dict.fromkeys(STORAGES, ("own", "none")),
}
CASES = [
    pytest.param(where, storage, aggregation, id=f"{where}, {storage}, {aggregation}")
    for where, columns in TABLE.items()
    for storage in columns
    for aggregation in TOTAL
    # Without an aggregation there is nothing to read of rows, or to write by all.
    if not (storage == "on read" and aggregation == "NONE" and "replica," not in where)
]


def made(storage: str, aggregation: str) -> tuple[jd.Strategy, jd.Variable]:
    strategy = STRATEGIES["mirrored" if storage == "on read" else storage]()
    kind = "ON_READ" if storage == "on read" else "AUTO"
    return strategy, variable(strategy, jnp.asarray(OLD), synchronization=kind, aggregation=aggregation)


def at(where: str, strategy: jd.Strategy, act: Callable[[], Any]) -> Any:
    """What `act` returns there."""
    place, _, how = where.rpartition(", ")
    executor = "lockstep" if how == "Python" else "compiled"
    if place == "all replicas":
        return act() if executor == "lockstep" else jd.function(act)()
    if place == "a merge_call":
        return execute(executor, strategy, lambda: here().merge_call(lambda _: act()))
    return execute(executor, strategy, act)


def local(strategy: jd.Strategy, value: Any) -> list[Any]:
    return [np.asarray(part) for part in strategy.experimental_local_results(value)]


@pytest.mark.quick_cases(16, whole=True)
@pytest.mark.parametrize(("where", "storage", "aggregation"), CASES)
def test_the_table(where: str, storage: str, aggregation: str) -> None:
    strategy, v = made(storage, aggregation)
    sees, writes = TABLE[where][storage]
    rows = np.stack([OLD, OLD])
    expected = TOTAL[aggregation](rows) if storage == "on read" and sees == "total" else OLD

    def read() -> Any:
        if writes != "none":
            return v + 0.0
        value, (gradient,) = jd.value_and_grad(lambda: jnp.vdot(v.read_value(), jnp.asarray([3.0, 5.0])), [v])()
        return jnp.stack([value, *gradient])

    seen = local(strategy, at(where, strategy, read))
    for part in seen:
        np.testing.assert_allclose(part, expected if writes != "none" else [13.0, 3.0, 5.0])
    if writes == "none":
        return
    by_each = where.startswith("a replica")

    def write() -> None:
        v.assign(jnp.asarray(OF_EACH[0]) + 10 * fraction() if by_each else jnp.asarray(OF_ALL))

    if by_each and storage != "on read" and aggregation == "NONE":
        with pytest.raises(VariableError, match="aggregation"):
            at(where, strategy, write)
        return
    at(where, strategy, write)
    after = TOTAL[aggregation](OF_EACH) if by_each else OF_ALL
    if after is None:  # rows that no aggregation brings together
        for part, row in zip(local(strategy, v), OF_EACH, strict=True):
            np.testing.assert_allclose(part, row)
    else:
        np.testing.assert_allclose(v.numpy(), after)
