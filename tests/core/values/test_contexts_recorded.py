"""Variables written in one context and read in each, against what TensorFlow 2.21 did.

`tests/oracle/record_contexts.py` made the table: strategies x synchronization x aggregation x where it is written x
inside or outside a compiled function. Here every row is also read by both executors.
"""

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from replicas import execute, fraction, here, mirrored, one_device, variable

Row = list[Any]
ROWS: list[Row] = json.loads((Path(__file__).parents[2] / "oracle" / "contexts.json").read_text())
NAMES, WHERE, COMPILED = ("mirrored", "central", "one device"), ("replica", "merge", "cross"), (False, True)


@cache
def strategy_of(name: str) -> jd.Strategy:
    if name == "central":
        return jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    return mirrored(2) if name == "mirrored" else one_device(0)


def diverges(row: Row) -> bool:
    """Whether TensorFlow lets the copies of a mirrored variable diverge, against its documents."""
    name, sync, aggregation, where, *_ = row
    return name == "mirrored" and sync in ("AUTO", "ON_WRITE") and aggregation == "NONE" and where == "replica"


def make(row: Row) -> jd.Variable:
    return variable(
        strategy_of(row[0]),
        1.0,
        synchronization=jd.VariableSynchronization[row[1]],
        aggregation=jd.VariableAggregation[row[2]],
    )


def write(v: jd.Variable, where: str) -> None:
    """What a replica writes, or what is written for all of them."""

    def merged(strategy: jd.Strategy, x: Any) -> None:
        total = strategy.reduce("SUM", x, axis=None)
        strategy.extended.update(v, lambda v, x: v.assign_add(x), args=(total,))

    if where == "replica":
        v.assign_add(fraction() + 1)
    elif where == "merge":
        here().merge_call(merged, (fraction() + 1,))
    else:
        v.assign(4.0)


def write_all(strategy: jd.Strategy, variables: list[jd.Variable], where: str, compiled: bool) -> None:
    def all_of_them() -> None:
        for v in variables:
            write(v, where)

    def step() -> None:
        if where == "cross":
            with strategy.scope():
                all_of_them()
        else:
            strategy.run(all_of_them)

    (jd.function(step) if compiled else step)()


def read_all(strategy: jd.Strategy, variables: list[jd.Variable], place: str, executor: str) -> list[Any]:
    def read() -> list[Any]:
        return [v.read_value() * 1.0 for v in variables]

    if place == "replica":
        return execute(executor, strategy, read)
    if place == "merge":
        return execute(executor, strategy, lambda: here().merge_call(lambda _: read()))
    with strategy.scope():
        return jd.function(read)() if executor == "compiled" else read()


def test_the_table_is_complete() -> None:
    assert len(ROWS) == 3 * 4 * 4 * 3 * 2
    assert sum("error" not in row[5] for row in ROWS) == 254


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize(("name", "where", "compiled"), list(itertools.product(NAMES, WHERE, COMPILED)))
def test_what_is_written_is_read_in_every_context(name: str, where: str, compiled: bool) -> None:
    strategy = strategy_of(name)
    rows = [r for r in ROWS if r[0] == name and r[3] == where and r[4] == compiled and "error" not in r[5]]
    rows = [row for row in rows if not diverges(row)]
    variables = [make(row) for row in rows]
    write_all(strategy, variables, where, compiled)
    for place, executor in itertools.product(("replica", "merge", "cross"), ("lockstep", "compiled")):
        readable = [i for i, row in enumerate(rows) if isinstance(row[5][place], list)]
        values = read_all(strategy, [variables[i] for i in readable], place, executor)
        for i, value in zip(readable, values, strict=True):
            wanted = rows[i][5][place]
            parts = [np.asarray(part) for part in strategy.experimental_local_results(value)]
            # A value that all replicas share comes back once from TensorFlow and as equal copies here.
            np.testing.assert_allclose(parts, wanted * (len(parts) // len(wanted)), err_msg=str((rows[i], executor)))
        for i in set(range(len(rows))) - set(readable):
            with pytest.raises(ValueError, match="HINT"):
                read_all(strategy, [variables[i]], place, executor)


@pytest.mark.parametrize(("name", "compiled"), list(itertools.product(NAMES, COMPILED)))
def test_refusals(name: str, compiled: bool) -> None:
    rows = [r for r in ROWS if r[0] == name and r[4] == compiled and ("error" in r[5] or diverges(r))]
    assert bool(rows) == (name != "one device")

    def act(row: Row) -> None:
        write_all(strategy_of(name), [make(row)], row[3], compiled)

    for row in rows:
        with pytest.raises(ValueError, match="HINT"):
            act(row)
