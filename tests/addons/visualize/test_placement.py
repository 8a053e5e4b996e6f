"""Where the parts of arrays, variables and distributed values are."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.addons.visualize.placement import Cell, How, Placement, Row
from jaxtribute._src.addons.visualize.text import part_text

NAMES = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]


@pytest.fixture(scope="module")
def mirrored() -> jd.MirroredStrategy:
    return jd.MirroredStrategy(NAMES)


def found(strategy: jd.Strategy, what: Any) -> Placement:
    result = strategy.visualize(what).found
    assert isinstance(result, Placement)
    return result


def bounds(row: Row, axis: int = 0) -> list[tuple[int, int] | None]:
    return [None if cell is None else cell.bounds[axis] for cell in row.cells]


def contents(row: Row) -> list[int | None]:
    return [None if cell is None else cell.content for cell in row.cells]


def test_a_mirrored_variable_is_whole_on_every_device(mirrored: jd.MirroredStrategy) -> None:
    with mirrored.scope():
        variable = jd.Variable(jnp.zeros((6, 2)), name="kernel")
    picture = found(mirrored, variable)
    (row,) = picture.rows
    assert (row.name, row.shape, row.dtype, row.how) == ("kernel", (6, 2), "float32", How.COPY)
    assert picture.columns == tuple(NAMES)
    assert bounds(row) == [(0, 6)] * 4
    assert contents(row) == [0, 0, 0, 0]
    assert picture.bytes_per_column() == (48, 48, 48, 48)
    assert "4 replica" in picture.title


def test_an_on_read_variable_has_a_value_on_each(mirrored: jd.MirroredStrategy) -> None:
    with mirrored.scope():
        hits = jd.Variable(
            jnp.zeros(3), synchronization=jd.VariableSynchronization.ON_READ, aggregation=jd.VariableAggregation.SUM
        )
    (row,) = found(mirrored, hits).rows
    assert row.how is How.OWN
    assert contents(row) == [0, 1, 2, 3]
    assert [cell.nbytes for cell in row.cells if cell] == [12] * 4


def test_the_slots_of_a_sharded_update_lie_in_slices(mirrored: jd.MirroredStrategy) -> None:
    with mirrored.scope():
        variable = jd.Variable(jnp.zeros((4, 8)), name="kernel")
        optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [variable], shard_update=True)
    rows = found(mirrored, {"model": [variable], "optimizer": optimizer}).rows
    assert [row.how for row in rows] == [How.COPY, How.SPLIT]
    assert bounds(rows[1]) == [(0, 8), (8, 16), (16, 24), (24, 32)]
    assert rows[1].kind() == "4 x 8 float32, stored flat"
    assert rows[0].kind() == "4 x 8 float32"


@pytest.mark.parametrize(
    ("size", "parts"), [(10, [(0, 3), (3, 6), (6, 9), (9, 10)]), (5, [(0, 2), (2, 4), (4, 5), (5, 5)])]
)
def test_no_part_goes_beyond_the_end_of_an_array(
    mirrored: jd.MirroredStrategy, size: int, parts: list[tuple[int, int]]
) -> None:
    with mirrored.scope():
        variable = jd.Variable(jnp.zeros(size), name="odd")
        optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [variable], shard_update=True)
    (row,) = found(mirrored, optimizer).rows
    assert row.kind() == f"{size} float32, stored flat"
    assert bounds(row) == parts
    assert (part_text(row, cast(Cell, row.cells[3])) == "none") == (size == 5)


def test_a_parameter_device_gets_a_column_of_its_own() -> None:
    central = jd.CentralStorageStrategy(["CPU:1", "CPU:2"], parameter_device="CPU:0")
    with central.scope():
        variable = jd.Variable(jnp.zeros(5), name="kernel")
    picture = found(central, [variable])
    assert picture.columns == ("CPU:1", "CPU:2", "CPU:0")
    assert picture.rows[0].how is How.ONE
    assert bounds(picture.rows[0]) == [None, None, (0, 5)]
    assert picture.bytes_per_column() == (0, 0, 20)


@pytest.mark.parametrize("make", [lambda: jd.OneDeviceStrategy("CPU:3"), jd.get_strategy])
def test_one_replica(make: Callable[[], jd.Strategy]) -> None:
    strategy = make()
    with strategy.scope():
        variable = jd.Variable(jnp.zeros((2, 3)), name="w")
        optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [variable])
    picture = found(strategy, {"w": variable, "o": optimizer})
    assert [row.how for row in picture.rows] == [How.ONE, How.ONE]
    assert [row.name for row in picture.rows] == ["w/trace", "w"]
    assert sum(picture.bytes_per_column()) == 48
    assert picture.columns[0] == ("CPU:3" if isinstance(strategy, jd.OneDeviceStrategy) else "CPU:0")


def test_fully_sharded_variables() -> None:
    strategy = jd.FullyShardedStrategy(NAMES)
    with strategy.scope():
        large = jd.Variable(jnp.zeros((256, 64)), name="large")
        small = jd.Variable(jnp.zeros(3), name="small")
    picture = found(strategy, [large, small])
    assert [row.how for row in picture.rows] == [How.SPLIT, How.COPY]
    assert picture.rows[0].kind() == "256 x 64 float32, stored flat"
    assert picture.bytes_per_column() == (256 * 64 * 4 // 4 + 12,) * 4


def test_nests_keep_their_paths(mirrored: jd.MirroredStrategy) -> None:
    nest = {"layers": [jnp.zeros(1), {"bias": jnp.zeros(2)}], "rate": 0.1}
    assert [row.name for row in found(mirrored, nest).rows] == ["layers/0", "layers/1/bias", "rate"]
    assert [row.name for row in found(mirrored, jnp.zeros(1)).rows] == ["value"]


def test_nothing_to_draw(mirrored: jd.MirroredStrategy) -> None:
    picture = found(mirrored, [])
    assert picture.rows == ()
    assert picture.bytes_per_column() == (0, 0, 0, 0)
    assert "in all" in str(mirrored.visualize([]))
    assert mirrored.visualize([]).svg().startswith("<svg")


@given(rows=st.integers(1, 23))
def test_a_batch_is_drawn_as_it_is_cut(rows: int) -> None:
    strategy = jd.MirroredStrategy(NAMES)
    (batch,) = strategy.experimental_distribute_dataset([np.zeros((rows, 2), np.float32)])
    (row,) = found(strategy, batch).rows
    assert row.shape == (rows, 2)
    assert row.how is How.SPLIT
    cells = [cell for cell in row.cells if cell is not None]
    sizes = [cell.bounds[0][1] - cell.bounds[0][0] for cell in cells]
    assert sizes == [part.shape[0] for part in batch.values]  # pyright: ignore[reportAttributeAccessIssue]
    assert sum(cell.nbytes for cell in cells) == rows * 8
    assert [cell.bounds[0][0] for cell in cells] == [sum(sizes[:i]) for i in range(4)]


def test_results_of_a_run_and_values_of_the_host(mirrored: jd.MirroredStrategy) -> None:
    result = mirrored.experimental_distribute_values_from_function(lambda context: context.replica_id_in_sync_group)
    text = mirrored.experimental_distribute_values_from_function(lambda context: object())
    what = {"a": result, "b": text, "c": np.zeros((2, 2)), "d": 1.5, "e": mirrored.place(jnp.ones(3))}
    rows = {row.name: row for row in found(mirrored, what).rows}
    assert [rows[name].how for name in "abcde"] == [How.OWN, How.OWN, How.HOST, How.HOST, How.COPY]
    assert rows["b"].dtype == "object"
    assert rows["c"].cells == (None,) * 4


def test_an_array_that_jax_splits_along_two_axes() -> None:
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    array = jax.device_put(jnp.zeros((4, 6)), jax.NamedSharding(mesh, jax.P("a", "b")))
    strategy = jd.MirroredStrategy(NAMES)
    (row,) = found(strategy, array).rows
    assert row.how is How.SPLIT
    assert sorted({*bounds(row)} - {None}) == [(0, 2), (2, 4)]  # type: ignore[type-var]
    assert sorted({*bounds(row, 1)} - {None}) == [(0, 3), (3, 6)]  # type: ignore[type-var]
    assert sorted(x for x in contents(row) if x is not None) == [0, 1, 2, 3]


def test_objects_with_variables_and_variables_of_other_libraries(mirrored: jd.MirroredStrategy) -> None:
    layer = SimpleNamespace(value=jnp.zeros(2), path="dense/bias")
    model = SimpleNamespace(variables=[layer, jnp.ones(3)])
    rows = found(mirrored, {"model": model}).rows
    assert [row.name for row in rows] == ["dense/bias", "model/1"]


def test_what_holds_no_array_cannot_be_drawn(mirrored: jd.MirroredStrategy) -> None:
    with pytest.raises(jd.errors.ArgumentTypeError, match=r"x is a str, .*HINT"):
        mirrored.visualize({"x": "text"})
