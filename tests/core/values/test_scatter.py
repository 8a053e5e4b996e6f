"""Writes to some rows of a variable, in every context, against NumPy."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute.errors import ArgumentTypeError, ShapeError, VariableError
from replicas import components, each_executor, execute, ident, mirrored, one_device, variable

AGG, ON_READ = jd.VariableAggregation, jd.VariableSynchronization.ON_READ
METHODS = {
    "scatter_add": np.add,
    "scatter_sub": np.subtract,
    "scatter_mul": np.multiply,
    "scatter_div": np.divide,
    "scatter_min": np.minimum,
    "scatter_max": np.maximum,
    "scatter_update": lambda old, new: new,
}
START = np.arange(1, 9, dtype=np.float32).reshape(4, 2)


def rows(values: Any, indices: Any) -> jd.IndexedSlices:
    return jd.IndexedSlices(np.asarray(values, np.float32), np.asarray(indices, np.int32))


def written(method: str, start: Any, values: Any, indices: Any) -> Any:
    result = np.array(start)
    for index, value in zip(indices, values, strict=True):
        result[index] = METHODS[method](result[index], value)
    return result


@pytest.mark.quick_cases(9)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("place", ["plain", "one device", "mirrored", "central"])
def test_across_replicas(method: str, place: str) -> None:
    strategy = {
        "plain": jd.get_strategy,
        "one device": lambda: one_device(1),
        "mirrored": lambda: mirrored(2),
        "central": lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:3"),
    }[place]()
    v = jd.Variable(START) if place == "plain" else variable(strategy, START)
    delta = rows([[2.0, 4.0], [0.5, 8.0]], [3, 0])
    assert getattr(v, method)(delta) is v
    once = written(method, START, delta.values, delta.indices)
    np.testing.assert_allclose(v.numpy(), once)

    @jd.function
    def step() -> None:
        with strategy.scope():
            getattr(v, method)(delta)

    step()
    np.testing.assert_allclose(v.numpy(), written(method, once, delta.values, delta.indices))


@pytest.mark.quick_cases(5)
@each_executor
@pytest.mark.parametrize("place", ["mirrored", "central"])
@pytest.mark.parametrize(
    ("method", "aggregation", "wanted"),
    [
        ("scatter_add", AGG.SUM, [[1 + 0 + 1, 2], [3 + 1, 4], [5 + 1, 6], [7, 8]]),
        ("scatter_sub", AGG.MEAN, [[1 - 0.5, 2], [3 - 0.5, 4], [5 - 0.5, 6], [7, 8]]),
        ("scatter_mul", AGG.SUM, [[0, 0], [3, 0], [5, 0], [7, 8]]),
        ("scatter_mul", AGG.MEAN, [[0, 0], [1.5, 0], [2.5, 0], [7, 8]]),
        ("scatter_add", AGG.ONLY_FIRST_REPLICA, [[1, 2], [3 + 1, 4], [5, 6], [7, 8]]),
        ("scatter_update", AGG.ONLY_FIRST_REPLICA, [[0, 0], [1, 0], [5, 6], [7, 8]]),
    ],
)
def test_in_replicas(executor: str, place: str, method: str, aggregation: Any, wanted: Any) -> None:
    strategy = mirrored(2) if place == "mirrored" else jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:3")
    v = variable(strategy, START, aggregation=aggregation)

    def replica() -> None:
        mine = jnp.asarray(ident(), jnp.int32)
        first = jnp.asarray([[1.0, 0.0]]) * mine.astype(jnp.float32)
        values = jnp.concatenate([first, jnp.asarray([[1.0, 0.0]])])
        getattr(v, method)(jd.IndexedSlices(values, jnp.stack([0 * mine, 1 + mine])))

    execute(executor, strategy, replica)
    np.testing.assert_allclose(v.numpy(), wanted)


@each_executor
def test_metrics_are_written_by_each_replica(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, np.zeros(3, np.float32), synchronization=ON_READ, aggregation=AGG.SUM)

    def replica() -> None:
        index = jnp.asarray(ident(), jnp.int32)
        v.scatter_add(jd.IndexedSlices(jnp.ones(2), jnp.stack([index, index])))

    execute(executor, strategy, replica)
    assert components(v) == [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]
    assert v.numpy().tolist() == [2.0, 2.0, 0.0]
    with pytest.raises(VariableError, match=r"strategy\.run"):
        v.scatter_add(rows([1.0], [0]))


@each_executor
@pytest.mark.parametrize(
    ("method", "aggregation"), [("scatter_add", AGG.NONE), ("scatter_update", AGG.SUM), ("scatter_max", AGG.MEAN)]
)
def test_what_the_aggregation_does_not_say_is_an_error(executor: str, method: str, aggregation: Any) -> None:
    v = variable(mirrored(2), START, aggregation=aggregation)
    with pytest.raises(VariableError, match=f"{method} was called by each of 2 replicas"):
        execute(executor, mirrored(2), lambda: getattr(v, method)(rows([[1.0, 1.0]], [0])))


def test_mistakes() -> None:
    v = jd.Variable(START)
    with pytest.raises(ArgumentTypeError, match="IndexedSlices"):
        v.scatter_add(([1.0], [0]))  # pyright: ignore[reportArgumentType]
    for wrong in (rows([[1.0]], [0]), rows([[1.0, 1.0]], [0, 1]), rows([1.0, 1.0], 0)):
        with pytest.raises(ShapeError, match=r"\(4, 2\)"):
            v.scatter_add(wrong)
    np.testing.assert_array_equal(v.numpy(), START)


@settings(max_examples=25)
@given(
    method=st.sampled_from(["scatter_add", "scatter_sub", "scatter_min", "scatter_max"]),
    indices=st.lists(st.integers(0, 3), max_size=5),
    seed=st.integers(0, 99),
)
def test_rows_may_come_several_times(method: str, indices: list[int], seed: int) -> None:
    values = np.random.default_rng(seed).integers(-3, 4, (len(indices), 2)).astype(np.float32)
    v = jd.Variable(START)
    getattr(v, method)(rows(values, indices))
    np.testing.assert_allclose(v.numpy(), written(method, START, values, indices))
