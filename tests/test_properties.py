"""Random nests, shapes, dtypes, axes and operations, by every executor, against NumPy."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportArgumentType=false
# pyright: reportCallIssue=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from replicas import EXECUTORS, execute, here, mirrored, per_replica, variable

DTYPES = ("bfloat16", "float32", "int32", "bool")
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
dtypes = st.sampled_from(DTYPES)
ops = st.sampled_from(["SUM", "MEAN"])
replica_counts = st.sampled_from([1, 2, 3])
few = settings(max_examples=12)


def nests(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Tuples, lists and dictionaries of leaves, nested."""
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=2),
            st.tuples(inner, inner),
            st.dictionaries(st.sampled_from("ab"), inner, min_size=1, max_size=2),
        ),
        max_leaves=3,
    )


specs = st.tuples(shapes, dtypes)


def is_spec(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str)  # pyright: ignore[reportUnknownArgumentType]


def random_array(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Small integers, which every dtype here holds and adds up exactly."""
    values = np.random.default_rng(seed).integers(0, 4, shape)
    return jnp.asarray(values > 1 if dtype == "bool" else values).astype(dtype)


def random_values(nest: Any, seed: int) -> Any:
    """A nest of arrays for a nest of specs."""
    leaves, tree = jax.tree.flatten(nest, is_leaf=is_spec)
    return tree.unflatten([random_array(shape, dtype, seed + 31 * i) for i, (shape, dtype) in enumerate(leaves)])


def wide(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value).astype(np.float64)


def reduced(parts: list[Any], op: str, axis: Any = None) -> Any:
    """The reduction by NumPy: over replicas, and along `axis` within each."""
    arrays = [wide(part) for part in parts]
    if axis is None:
        total, count = sum(arrays), len(arrays)
    else:
        axes = axis if isinstance(axis, tuple) else (axis,)
        total = sum(array.sum(axes) for array in arrays)
        count = sum(int(np.prod([array.shape[one] for one in axes])) for array in arrays)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total if op == "SUM" else np.true_divide(total, count)


def dtype_of(dtype: str, op: str) -> str:
    if dtype in ("int32", "bool"):
        return "int32" if op == "SUM" else "float32"
    return dtype


def same(result: Any, wanted: Any, dtype: str) -> None:
    """Equal up to the rounding of a division in `dtype`."""
    assert str(result.dtype) == dtype
    tolerance = 1e-2 if dtype == "bfloat16" else 1e-6
    np.testing.assert_allclose(wide(result), wanted, rtol=tolerance, atol=tolerance)


def check_each(results: Any, parts: list[Any], check: Callable[[Any, list[Any]], None]) -> None:
    """Calls `check` with each leaf of `results` and the replicas' leaves at its place."""
    leaves, tree = jax.tree.flatten(results, is_leaf=lambda leaf: isinstance(leaf, jd.DistributedValues))
    assert tree == jax.tree.structure(parts[0])
    for leaf, column in zip(leaves, zip(*map(jax.tree.leaves, parts), strict=True), strict=True):
        check(leaf, list(column))


def each(strategy: jd.Strategy, parts: list[Any]) -> Any:
    return per_replica(strategy, parts)


def local(strategy: jd.Strategy, value: Any) -> list[Any]:
    parts = strategy.experimental_local_results(value)
    return list(parts) if len(parts) > 1 else list(parts) * strategy.num_replicas_in_sync


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("executor", EXECUTORS)
@few
@given(nest=nests(specs), replicas=replica_counts, op=ops, seed=st.integers(0, 99))
def test_all_reduce(executor: str, nest: Any, replicas: int, op: str, seed: int) -> None:
    strategy = mirrored(replicas)
    parts = [random_values(nest, seed + i) for i in range(replicas)]
    results = execute(executor, strategy, lambda x: here().all_reduce(op, x), each(strategy, parts))

    def check(result: Any, column: list[Any]) -> None:
        dtype = dtype_of(str(column[0].dtype), op)
        for part in local(strategy, result):
            same(part, reduced(column, op), dtype)

    check_each(results, parts, check)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("executor", EXECUTORS)
@few
@given(data=st.data(), replicas=replica_counts, dtype=dtypes, seed=st.integers(0, 99))
def test_all_gather(executor: str, data: st.DataObject, replicas: int, dtype: str, seed: int) -> None:
    shape = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple))
    axis = data.draw(st.integers(0, len(shape) - 1))
    strategy = mirrored(replicas)
    parts = [random_array(shape, dtype, seed + i) for i in range(replicas)]
    result = execute(executor, strategy, lambda x: here().all_gather(x, axis=axis), each(strategy, parts))
    for part in local(strategy, result):
        same(part, np.concatenate([wide(one) for one in parts], axis), dtype)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("compiled", [False, True])
@few
@given(data=st.data(), nest=nests(specs), replicas=st.sampled_from([2, 3]), op=ops, seed=st.integers(0, 99))
def test_reduce(compiled: bool, data: st.DataObject, nest: Any, replicas: int, op: str, seed: int) -> None:
    strategy = mirrored(replicas)
    parts = [random_values(nest, seed + i) for i in range(replicas)]
    rank = min(leaf.ndim for leaf in jax.tree.leaves(parts[0]))
    axes = st.integers(-rank, rank - 1) if rank else st.none()
    several = st.sets(st.integers(0, rank - 1), min_size=1).map(tuple) if rank else st.none()
    axis = data.draw(st.one_of(st.none(), axes, several))

    def step(x: Any) -> Any:
        return strategy.reduce(op, x, axis=axis)

    results = (jd.function(step) if compiled else step)(each(strategy, parts))

    def check(result: Any, column: list[Any]) -> None:
        same(result, reduced(column, op, axis), dtype_of(str(column[0].dtype), op))

    check_each(results, parts, check)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("executor", EXECUTORS)
@few
@given(
    rows=st.lists(st.integers(0, 3), min_size=2, max_size=3).filter(any),
    dtype=dtypes,
    columns=st.integers(1, 2),
    op=ops,
    seed=st.integers(0, 99),
)
def test_uneven_batches(executor: str, rows: list[int], dtype: str, columns: int, op: str, seed: int) -> None:
    strategy = mirrored(len(rows))
    parts = [random_array((count, columns), dtype, seed + i) for i, count in enumerate(rows)]
    x = each(strategy, parts)
    result = execute(executor, strategy, lambda x: x, x)
    same(strategy.reduce(op, result, axis=0), reduced(parts, op, 0), dtype_of(dtype, op))
    same(strategy.gather(result, axis=0), np.concatenate([wide(part) for part in parts]), dtype)
    for part, wanted in zip(result.values, parts, strict=True):
        same(part, wide(wanted), dtype)


@few
@given(data=st.data(), replicas=st.sampled_from([2, 3]), dtype=dtypes, seed=st.integers(0, 99))
def test_gather(data: st.DataObject, replicas: int, dtype: str, seed: int) -> None:
    shape = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple))
    axis = data.draw(st.integers(0, len(shape) - 1))
    strategy = mirrored(replicas)
    parts = [random_array(shape, dtype, seed + i) for i in range(replicas)]
    wanted = np.concatenate([wide(part) for part in parts], axis)
    same(strategy.gather(each(strategy, parts), axis=axis), wanted, dtype)
    same(jd.function(lambda x: strategy.gather(x, axis=axis))(each(strategy, parts)), wanted, dtype)


@pytest.mark.parametrize("executor", EXECUTORS)
@few
@given(nest=nests(specs), replicas=replica_counts, seed=st.integers(0, 99))
def test_what_goes_in_comes_out(executor: str, nest: Any, replicas: int, seed: int) -> None:
    strategy = mirrored(replicas)
    parts = [random_values(nest, seed + i) for i in range(replicas)]
    results = execute(executor, strategy, lambda x: x, each(strategy, parts))

    def check(result: Any, column: list[Any]) -> None:
        for part, wanted in zip(local(strategy, result), column, strict=True):
            assert part.shape == wanted.shape
            same(part, wide(wanted), str(wanted.dtype))

    check_each(results, parts, check)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("make", ["mirrored", "central"])
@pytest.mark.parametrize("executor", EXECUTORS)
@few
@given(
    shape=shapes,
    dtype=st.sampled_from(["bfloat16", "float32", "int32"]),
    method=st.sampled_from(["assign", "assign_add", "assign_sub"]),
    aggregation=st.sampled_from(["SUM", "MEAN", "ONLY_FIRST_REPLICA"]),
    seed=st.integers(0, 99),
)
def test_writes(
    make: str, executor: str, shape: tuple[int, ...], dtype: str, method: str, aggregation: str, seed: int
) -> None:
    if dtype == "int32" and aggregation == "MEAN":
        aggregation = "SUM"  # a mean of integers is refused
    strategy = mirrored(3) if make == "mirrored" else jd.CentralStorageStrategy(["CPU:0", "CPU:1", "CPU:2"], "CPU:3")
    old, parts = random_array(shape, dtype, seed + 7), [random_array(shape, dtype, seed + i) for i in range(3)]
    v = variable(strategy, old, aggregation=jd.VariableAggregation[aggregation])
    execute(executor, strategy, lambda x: (getattr(v, method)(x), None)[1], each(strategy, parts))
    given = wide(parts[0]) if aggregation == "ONLY_FIRST_REPLICA" else reduced(parts, aggregation)
    sign = {"assign": 0, "assign_add": 1, "assign_sub": -1}[method]
    same(v.values[0], given if not sign else wide(old) + sign * given, dtype)
