"""Means of narrow types add up wide: no sum overflows where the mean fits."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from replicas import components, each_executor, execute, here, mirrored, per_replica, variable

LARGE = {"int8": 100, "uint8": 200, "int16": 30000, "int32": 2_000_000_000, "float16": 60000.0, "bfloat16": 1e30}
FLOATS = ("float16", "bfloat16")
each_dtype = pytest.mark.parametrize("dtype", LARGE)


def expected_dtype(dtype: str) -> str:
    return dtype if dtype in FLOATS else "float32"


@pytest.mark.quick_cases(18, half=True)
@each_dtype
@each_executor
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_reduce(executor: str, dtype: str, axis: int | None, replicas: int) -> None:
    strategy = mirrored(replicas)
    given = per_replica(strategy, [np.full(2, LARGE[dtype]).astype(dtype)] * replicas)

    def whole(x: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(lambda x: x + jnp.zeros_like(x), (x,)), axis)

    result = (jd.function(whole) if executor == "compiled" else whole)(given)
    assert result.dtype == expected_dtype(dtype)
    np.testing.assert_allclose(np.asarray(result, np.float64), float(np.asarray(LARGE[dtype], dtype)), rtol=1e-2)


@each_dtype
@each_executor
def test_all_reduce(executor: str, dtype: str) -> None:
    strategy = mirrored(2)
    given = per_replica(strategy, [np.full(2, LARGE[dtype]).astype(dtype)] * 2)
    result = execute(executor, strategy, lambda x: here().all_reduce("MEAN", x), given)
    for part in result.values:
        assert part.dtype == expected_dtype(dtype)
        np.testing.assert_allclose(np.asarray(part, np.float64), float(np.asarray(LARGE[dtype], dtype)), rtol=1e-2)


@each_dtype
@pytest.mark.parametrize(
    "ops",
    [jd.NcclAllReduce(), jd.HierarchicalCopyAllReduce(), jd.ReductionToOneDevice()],
    ids=lambda ops: type(ops).__name__,
)
def test_cross_device_operations(ops: jd.CrossDeviceOps, dtype: str) -> None:
    strategy = mirrored(2)
    given = per_replica(strategy, [np.full(2, LARGE[dtype]).astype(dtype)] * 2)
    result = ops.reduce("MEAN", given, "CPU:0")
    assert result.dtype == expected_dtype(dtype)
    np.testing.assert_allclose(np.asarray(result, np.float64), float(np.asarray(LARGE[dtype], dtype)), rtol=1e-2)


@pytest.mark.parametrize("dtype", FLOATS)
@each_executor
def test_variables(executor: str, dtype: str) -> None:
    strategy = mirrored(2)
    large = np.asarray(LARGE[dtype], dtype)
    mean = {"aggregation": jd.VariableAggregation.MEAN}
    written = variable(strategy, jnp.zeros((), dtype), **mean)
    on_read = variable(strategy, jnp.zeros((), dtype), synchronization=jd.VariableSynchronization.ON_READ, **mean)

    def write() -> None:
        written.assign(jnp.asarray(large))
        on_read.assign(jnp.asarray(large))

    execute(executor, strategy, write)
    for one in (written, on_read):
        assert one.read_value().dtype == dtype
        assert float(one) == float(large)


@each_executor
def test_uneven_replicas(executor: str) -> None:
    strategy = mirrored(2)
    given = per_replica(strategy, [np.full(2, 100, np.int8), np.full(1, 70, np.int8)])

    def whole(x: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(lambda x: x + jnp.int8(0), (x,)), 0)

    assert float((jd.function(whole) if executor == "compiled" else whole)(given)) == pytest.approx(90.0)


def test_means_are_floats_wherever_the_value_lies() -> None:
    strategy = mirrored(2)
    same = strategy.place(np.int8(100))
    assert strategy.reduce("MEAN", same, None).dtype == np.float32
    compiled = jd.function(lambda: strategy.reduce("MEAN", strategy.run(lambda: jnp.int8(100)), None))()
    eager = strategy.reduce("MEAN", strategy.run(lambda: jnp.int8(100)), None)
    assert (float(compiled), compiled.dtype) == (float(eager), eager.dtype) == (100.0, np.float32)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["int8", "uint8", "int16", "float16"]),
    st.lists(st.integers(-128, 127), min_size=3, max_size=3),
    st.booleans(),
)
def test_means_agree_with_numpy(dtype: str, numbers: list[int], compiled: bool) -> None:
    strategy = mirrored(3)
    arrays = [np.asarray([number, 1]).astype(dtype) for number in numbers]
    given = per_replica(strategy, arrays)

    def whole(x: Any) -> Any:
        return strategy.reduce("MEAN", x, None), strategy.run(lambda x: here().all_reduce("MEAN", x), (x,))

    mean, all_reduced = (jd.function(whole) if compiled else whole)(given)
    expected = np.mean(np.stack(arrays), axis=0, dtype=np.float64)
    for one in (mean, *all_reduced.values):
        np.testing.assert_allclose(np.asarray(one, np.float64), expected, rtol=1e-3, atol=1e-6)
    assert components(mean) == components(all_reduced)[:1]
