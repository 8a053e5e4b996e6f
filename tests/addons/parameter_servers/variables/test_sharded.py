"""Split variables against NumPy: every write for every dtype, over even and uneven shards; checkpoints."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError
from jaxtribute.partitioners import FixedShardsPartitioner
from parameter_servers.clusters import coordinated, float32, int32, threads

ROWS = 7
DTYPES = ["int8", "uint8", "int32", "float16", "bfloat16", "float32", "complex64"]
SCATTERED: dict[str, Any] = {
    "scatter_add": np.add, "scatter_sub": np.subtract, "scatter_mul": np.multiply, "scatter_min": np.minimum,
    "scatter_max": np.maximum, "scatter_update": None,
}  # fmt: skip


@pytest.fixture(scope="module", params=[1, 3, 7], ids=lambda count: f"{count} shards")
def strategy(request: pytest.FixtureRequest) -> Generator[Any]:
    with threads(servers=2, partitioner=FixedShardsPartitioner(request.param)) as made:
        yield made


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_writes_are_those_of_an_array(strategy: Any, data: st.DataObject) -> None:
    dtype = np.dtype(jnp.dtype(data.draw(st.sampled_from(DTYPES))))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    expected = random.integers(0, 9, (ROWS, 2)).astype(dtype)
    with strategy.scope():
        variable = jd.Variable(expected, name="v")
    assert (variable.dtype, variable.shape) == (dtype, (ROWS, 2))
    for _ in range(data.draw(st.integers(1, 4))):
        how = data.draw(st.sampled_from(["assign", "assign_add", "assign_sub", *SCATTERED]))
        if how in SCATTERED:
            ids = int32(
                data.draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=5, unique=how == "scatter_update"))
            )
            rows = random.integers(1, 4, (len(ids), 2)).astype(dtype)
            getattr(variable, how)(jd.IndexedSlices(rows, ids))
            if SCATTERED[how] is None:
                expected[ids] = rows
            else:
                SCATTERED[how].at(expected, ids, rows)
        else:
            value = random.integers(0, 9, (ROWS, 2)).astype(dtype)
            assert getattr(variable, how)(value) is variable
            expected = {"assign": value, "assign_add": expected + value, "assign_sub": expected - value}[how].copy()
    assert variable.numpy().dtype == dtype
    np.testing.assert_array_equal(variable.numpy(), expected)
    parts = getattr(variable, "variables", [variable])
    np.testing.assert_array_equal(np.concatenate([part.numpy() for part in parts]), expected)


def test_integers_divide_towards_zero(strategy: Any) -> None:
    with strategy.scope():
        variable = jd.Variable(int32([-7, 7, 8, -9, 1, 2, 3]))
    variable.scatter_div(jd.IndexedSlices(int32([2, -2, 4]), int32([0, 1, 3])))
    assert variable.numpy().tolist() == [-3, -3, 8, -2, 1, 2, 3]
    assert variable.dtype == np.int32


def test_operators_and_conversions(strategy: Any) -> None:
    table = np.arange(1, 15, dtype=np.float32).reshape(ROWS, 2)
    with strategy.scope():
        v = jd.Variable(table)
    checks: list[tuple[Any, Any]] = [
        (v + 1, table + 1), (2 - v, 2 - table), (v / 2, table / 2), (-v, -table), (v > 4, table > 4), (v**2, table**2),
        (v @ float32([1, 2]), table @ [1, 2]), (jnp.sum(v.read_value()), table.sum()), (np.asarray(v), table),
    ]  # fmt: skip
    for found, expected in checks:
        np.testing.assert_allclose(found, expected)
    assert len(v) == ROWS
    np.testing.assert_array_equal(np.stack([np.asarray(row) for row in v]), table)


def test_values_that_do_not_fit_change_nothing(strategy: Any) -> None:
    with strategy.scope():
        v = jd.Variable(np.zeros((ROWS, 2), np.float32), name="v")
    for write, error in (
        (lambda: v.assign(np.ones((ROWS + 1, 2), np.float32)), ShapeError),
        (lambda: v.assign_add(np.ones((2, ROWS), np.float32)), ShapeError),
        (lambda: v.assign("x"), ArgumentTypeError),
        (lambda: v.scatter_add(jd.IndexedSlices(np.ones((1, 2), np.float32), int32([ROWS]))), ArgumentError),
        (lambda: v.scatter_add(jd.IndexedSlices(np.ones((1, 2), np.float32), int32([-1]))), ArgumentError),
        (lambda: jd.nn.embedding_lookup(v, int32([0, ROWS])), ArgumentError),
        (lambda: jd.nn.embedding_lookup(v, int32([-1])), ArgumentError),
    ):
        with pytest.raises(error):
            write()
    assert not v.numpy().any()


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (2, 0)])
def test_shapes_at_the_border(strategy: Any, shape: tuple[int, ...]) -> None:
    with strategy.scope():
        v = jd.Variable(np.ones(shape, np.float32))
    v.assign_add(np.ones(shape, np.float32))
    np.testing.assert_array_equal(v.numpy(), np.full(shape, 2))
    assert jd.function(lambda: v.assign_sub(np.ones(shape, np.float32)).read_value())().shape == shape


def test_split_variables_as_arguments_are_variables() -> None:
    """One function for two variables of one shape, on the coordinator and on a worker."""
    with coordinated(servers=2, partitioner=FixedShardsPartitioner(2)) as coordinator:
        with coordinator.strategy.scope():
            one, other = (jd.Variable(int32([i, i])) for i in (1, 2))

        def clear(variable: Any) -> Any:
            before = variable.numpy()
            variable.assign(int32([0, 0]))
            return before.tolist(), type(variable).__name__

        for value, variable in enumerate((one, other), 1):
            assert coordinator.schedule(clear, (variable,)).fetch() == ([value] * 2, "ShardedVariable")
            assert variable.numpy().tolist() == [0, 0]


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 9])
def test_a_checkpoint_is_restored_into_other_numbers_of_shards(tmp_path: Path, shards: int) -> None:
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    with threads(servers=2, partitioner=FixedShardsPartitioner(3)) as strategy, strategy.scope():
        saved = jd.Checkpoint(table=jd.Variable(table, name="table")).save(tmp_path / "saved", block=True)
    with threads(servers=3, partitioner=FixedShardsPartitioner(shards)) as strategy, strategy.scope():
        other = jd.Variable(np.zeros_like(table), name="table")
        checkpoint = jd.Checkpoint(table=other)
        checkpoint.restore(saved).assert_consumed()
        np.testing.assert_array_equal(other.numpy(), table)
        assert len(other.layout.shards) == min(shards, 5)
        other.assign_add(np.ones_like(table))
        back = checkpoint.save(tmp_path / "back", block=True)
    with threads(servers=1, partitioner=FixedShardsPartitioner(2)) as strategy, strategy.scope():
        again = jd.Variable(np.zeros_like(table), name="table")
        jd.Checkpoint(table=again).restore(back).assert_consumed()
        np.testing.assert_array_equal(again.variables[1].numpy(), table[3:] + 1)
