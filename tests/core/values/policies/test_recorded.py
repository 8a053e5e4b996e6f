"""Every way to write a variable, against what TensorFlow 2.21 did; `tests/oracle/record.py` made the table."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import jaxtribute as jd
from replicas import components, execute, fraction, here, mirrored, variable

Row = list[Any]
ROWS: list[Row] = json.loads((Path(__file__).parents[3] / "oracle" / "variables.json").read_text())


def difference(row: Row) -> str | None:
    """Why a row of the table does not hold here, if it does not."""
    replicas, sync, aggregation, where, _, value, result = row
    if replicas == 1:
        lone = sync == "ON_READ" and ("error" in result or "error" in str(result["read"]))
        return "with one replica there is no doubt about what an ON_READ variable holds, and no error" if lone else None
    if sync != "ON_READ" and aggregation == "NONE" and where == "replica":
        return "TensorFlow lets the copies diverge, against its documents; here it is an error"
    if sync != "ON_READ" and where == "cross" and value == "tensor":
        return "TensorFlow lets the copies diverge; here a variable with equal copies takes one value"
    if sync == "ON_READ" and where == "cross" and value == "tensor":
        return "TensorFlow fails with an AttributeError or a TypeError; here each replica gets its component"
    return None


def label(row: Row) -> str:
    return "-".join(str(part) for part in row[:6])


SAME = [row for row in ROWS if difference(row) is None]
REFUSED = [row for row in SAME if "error" in row[6]]
TAKEN = [row for row in SAME if "error" not in row[6]]


def make(row: Row) -> jd.Variable:
    replicas, sync, aggregation = row[:3]
    return variable(
        mirrored(replicas),
        1.0,
        synchronization=jd.VariableSynchronization[sync],
        aggregation=jd.VariableAggregation[aggregation],
    )


def write_in_replica(row: Row, v: jd.Variable) -> None:
    """What the row's replica function does."""
    where, update, value = row[3:6]
    given = 2.0 if value == "number" else fraction() + 1
    if where == "replica":
        getattr(v, update)(given)
        return

    def merged(strategy: jd.Strategy, x: Any) -> None:
        x = strategy.reduce("SUM", x, axis=None) if value == "tensor" else x
        strategy.extended.update(v, lambda v, x: getattr(v, update)(x), args=(x,))

    here().merge_call(merged, (given,))


def check(row: Row, v: jd.Variable) -> None:
    expected = row[6]
    assert components(v) == expected["local"], label(row)
    if isinstance(expected["read"], dict):
        with pytest.raises(ValueError, match="HINT"):
            v.read_value()
    else:
        assert float(v.read_value()) == expected["read"], label(row)


def test_the_table_is_complete() -> None:
    assert len(ROWS) == 3 * 3 * 4 * 3 * 3 * 2
    assert len(TAKEN) > 300
    assert len(REFUSED) > 10


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("executor", ["lockstep", "compiled"])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_writes_in_replicas(executor: str, replicas: int) -> None:
    rows = [row for row in TAKEN if row[0] == replicas and row[3] != "cross"]
    if executor == "lockstep" and replicas == 4:
        rows = rows[::3]
    variables = [make(row) for row in rows]

    def fn() -> None:
        for row, v in zip(rows, variables, strict=True):
            write_in_replica(row, v)

    execute(executor, mirrored(replicas), fn)
    for row, v in zip(rows, variables, strict=True):
        check(row, v)


@pytest.mark.parametrize("executor", ["eager", "compiled"])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_writes_across_replicas(executor: str, replicas: int) -> None:
    rows = [row for row in TAKEN if row[0] == replicas and row[3] == "cross"]
    variables = [make(row) for row in rows]
    strategy = mirrored(replicas)

    def write() -> None:
        for row, v in zip(rows, variables, strict=True):
            each = strategy.run(lambda: fraction() + 1) if row[5] == "tensor" else 2.0
            getattr(v, row[4])(each)

    with strategy.scope():
        (jd.function(write) if executor == "compiled" else write)()
    for row, v in zip(rows, variables, strict=True):
        check(row, v)


@pytest.mark.parametrize("executor", ["lockstep", "compiled"])
@pytest.mark.parametrize("row", REFUSED, ids=label)
def test_refusals(executor: str, row: Row) -> None:
    v, strategy = make(row), mirrored(row[0])
    before = components(v)
    write: Any = getattr(v, row[4])

    def act() -> None:
        if row[3] != "cross":
            execute(executor, strategy, lambda: write_in_replica(row, v))
        else:
            with strategy.scope():
                function: Any = jd.function(write) if executor == "compiled" else write
                function(2.0)

    with pytest.raises(ValueError, match="HINT"):
        act()
    assert components(v) == before


@pytest.mark.parametrize("executor", ["lockstep", "compiled"])
def test_where_tensorflow_lets_copies_diverge(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0)
    with pytest.raises(ValueError, match=r"assign was called by each of 2 replicas.*HINT: create it with aggregation"):
        execute(executor, strategy, lambda: (v.assign(fraction()), None)[1])
    with pytest.raises(ValueError, match=r"PerReplica with 2 was assigned"):
        v.assign(strategy.run(fraction))
    assert components(v) == [1.0, 1.0]


@pytest.mark.parametrize("aggregation", list(jd.VariableAggregation))
def test_on_read_variables_take_components(aggregation: jd.VariableAggregation) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0, synchronization=jd.VariableSynchronization.ON_READ, aggregation=aggregation)
    each = strategy.run(lambda: fraction() + 1)
    v.assign(each)
    assert components(v) == [1.0, 2.0]
    jd.function(v.assign_add)(each)
    assert components(v) == [2.0, 4.0]


def test_with_one_replica_an_on_read_variable_is_like_any_other() -> None:
    strategy = mirrored(1)
    v = variable(strategy, 1.0, synchronization=jd.VariableSynchronization.ON_READ)
    strategy.run(lambda: v.assign_add(fraction() + 1))
    with strategy.scope():
        assert float(v.assign_add(2.0).read_value()) == 4.0


def test_the_copies_of_a_variable_are_equal_arrays_on_their_devices() -> None:
    v = variable(mirrored(4), jnp.arange(3.0))
    assert [part.devices().pop().id for part in v.values] == [0, 1, 2, 3]
    assert components(v) == [[0.0, 1.0, 2.0]] * 4
