"""A variable keeps its dtype, whatever is written to it, by whom, and however it is combined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import JaxtributeError
from processes import run_python
from replicas import STRATEGIES, components, each_executor, each_strategy, execute, here, mirrored, variable

DTYPES = ("bool", "uint8", "int32", "bfloat16", "complex64")
AGGREGATIONS = ("sum", "mean", "only_first_replica")


def made(make: Callable[[], jd.Strategy], dtype: str, aggregation: str, synchronization: str) -> jd.Variable | None:
    """A variable of two ones; None where there can be none: a mean of integers would have to round."""
    options = {"aggregation": aggregation, "synchronization": synchronization}
    if aggregation == "mean" and dtype in ("bool", "uint8", "int32"):
        with pytest.raises(jd.errors.ArgumentError, match="HINT"):
            variable(make(), jnp.ones(2, dtype), **options)
        return None
    return variable(make(), jnp.ones(2, dtype), **options)


@each_strategy
@each_executor
@pytest.mark.parametrize("synchronization", ["auto", "on_read"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.quick_cases(40, half=True)
def test_what_replicas_write_has_the_variables_dtype(
    make: Callable[[], jd.Strategy], executor: str, synchronization: str, dtype: str
) -> None:
    strategy = make()
    several = strategy.num_replicas_in_sync > 1
    for aggregation in AGGREGATIONS:
        v = made(make, dtype, aggregation, synchronization)
        if v is None:
            continue

        def write(v: jd.Variable = v) -> Any:
            v.assign(jnp.ones(2, dtype))
            if dtype != "bool":
                v.assign_add(jnp.ones(2, dtype))
            return v.read_value()

        counted = dtype == "bool" and aggregation == "sum" and several
        rows = v.policy.form == "rows"
        if counted and not rows:
            with pytest.raises(jd.errors.VariableError, match=r"dtype bool.*HINT"):
                execute(executor, strategy, write)
            assert v.stored.dtype == dtype
            continue
        seen = execute(executor, strategy, write)
        # Each replica's write counts: one strategy adds up when it is written, another one when it is read.
        total = strategy.num_replicas_in_sync if aggregation == "sum" else 1
        wanted = 1 if dtype == "bool" else 2 if rows and several else 2 * total
        assert components(seen)[0] == [wanted, wanted]
        assert {str(part.dtype) for part in strategy.experimental_local_results(seen)} == {dtype}
        assert v.stored.dtype == v.dtype == dtype
        with strategy.scope():
            if counted:
                with pytest.raises(jd.errors.VariableError, match=r"dtype bool.*HINT"):
                    v.read_value()
                continue
            assert v.read_value().dtype == dtype
            assert v.numpy().tolist() == [wanted if dtype == "bool" else 2 * total] * 2


@each_strategy
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "name", ["assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_mul", "scatter_div"]
)
def test_booleans_are_not_added_up(make: Callable[[], jd.Strategy], compiled: bool, name: str) -> None:
    v = variable(make(), [True, False])
    rows = jd.IndexedSlices(jnp.asarray([True]), jnp.asarray([0]))

    def write() -> None:
        getattr(v, name)(rows if name.startswith("scatter") else jnp.asarray([True, True]))

    with make().scope(), pytest.raises(jd.errors.VariableError, match=rf"{name}.*dtype bool.*HINT"):
        (jd.function(write) if compiled else write)()
    assert v.numpy().tolist() == [True, False]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("where", ["across", "merge_call"])
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize(("dtype", "total"), [("int32", 100_000_001), ("int32", -7), ("uint8", 250), ("float32", 7.5)])
def test_the_total_that_is_assigned_is_the_one_that_is_read(
    compiled: bool, where: str, replicas: int, dtype: str, total: float
) -> None:
    strategy = mirrored(replicas)
    v = variable(strategy, jnp.zeros((2, 1), dtype), synchronization="on_read", aggregation="sum")
    value = np.full((2, 1), total, dtype)

    def assign(_: jd.Strategy) -> None:
        v.assign(value)

    def merged() -> None:
        here().merge_call(assign)

    def step() -> None:
        if where == "merge_call":
            strategy.run(merged)
        else:
            v.assign(value)

    with strategy.scope():
        (jd.function(step) if compiled else step)()
        assert v.numpy().tolist() == value.tolist()
    parts = np.stack(components(v.distributed())).astype(np.float64)
    assert np.ptp(parts) <= 1
    assert v.dtype == dtype


HALVES = np.linspace(0.1, 3.0, 400)


@pytest.mark.parametrize("axis", [0, None])
@pytest.mark.parametrize("how", ["eager", "argument", "closure", "merge_call"])
@pytest.mark.parametrize("name", ["mirrored", "central"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_half_precision_are_rounded_once_wherever_they_are_made(
    dtype: str, name: str, how: str, axis: int | None
) -> None:
    strategy = STRATEGIES[name]()
    x = strategy.experimental_distribute_values_from_function(
        lambda c: jnp.asarray(HALVES + c.replica_id_in_sync_group, dtype)
    )
    wide = np.sum([np.asarray(part, np.float64) for part in x.values], axis=0)
    wanted = np.asarray(wide if axis is None else wide.sum()).astype(jnp.dtype(dtype))

    def total(x: Any) -> Any:
        return strategy.reduce("SUM", x, axis=axis)

    def merged(x: Any) -> Any:
        return here().merge_call(lambda strategy, x: strategy.reduce("SUM", x, axis=axis), (x,))

    ways: dict[str, Callable[[], Any]] = {
        "eager": lambda: total(x),
        "argument": lambda: jd.function(total)(x),
        "closure": jd.function(lambda: total(x)),
        "merge_call": jd.function(lambda: strategy.run(merged, (x,))),
    }
    found = ways[how]()
    assert found.dtype == dtype
    np.testing.assert_array_equal(np.asarray(found), wanted)


@pytest.mark.slow
def test_sums_of_complex_constants_compile() -> None:
    # In a process of its own: XLA ends it where it is left to add up complex constants by itself.
    program = """
        import jax.numpy as jnp
        import jaxtribute as jd

        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        ones = jnp.ones(2, "complex64")
        for op in ("SUM", "MEAN"):
            step = jd.function(lambda: strategy.run(lambda: jd.get_replica_context().all_reduce(op, 1j * ones)))
            print(op, complex(step().values[0][0]))
    """
    assert run_python(program, devices=2, timeout=120).split() == ["SUM", "2j", "MEAN", "1j"]


@pytest.mark.parametrize("number", [-(2**31), 2**31 - 1])
def test_the_least_and_the_greatest_whole_number_fit(number: int) -> None:
    assert int(jd.Variable(np.array([number, 0], np.int64))[0]) == number
    with pytest.raises(JaxtributeError, match=str(3 * number)):
        jd.Variable(np.array([3 * number, 0], np.int64))
