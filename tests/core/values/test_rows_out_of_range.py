"""Ids that name no row mean the same under every strategy: an error where they are known, else no row at all."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from replicas import components, each_executor, each_strategy, execute, variable

IDS = [-5, -1, 0, 3, 4, 99]
SCATTERED = {
    "scatter_add": [4.0, 1.0, 1.0, 5.0],
    "scatter_sub": [-2.0, 1.0, 1.0, -3.0],
    "scatter_update": [3.0, 1.0, 1.0, 4.0],
    "scatter_max": [3.0, 1.0, 1.0, 4.0],
    "scatter_mul": [3.0, 1.0, 1.0, 4.0],
}


LONG = {
    "uint32": [0, 2**31, 2**31 + 1, 2**32 - 1],
    "int64": [0, 2**31 + 1, 2**32 + 1, -(2**32) + 1, -(2**32), 2**40 + 3, 2**63 - 1, -(2**63), -1],
    "uint64": [0, 2**31 + 1, 2**32 + 1, 2**40 + 3, 2**63 + 1, 2**64 - 1],
}


@pytest.fixture
def sixty_four_bits() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.quick_cases(3)
@each_strategy
@pytest.mark.parametrize("dtype", LONG)
@pytest.mark.usefixtures("sixty_four_bits")
def test_ids_beyond_32_bits_in_compiled_code(make: Callable[[], jd.Strategy], dtype: str) -> None:
    """JAX cuts ids to 32 bits, in which they would be those of other rows."""
    strategy = make()
    table = variable(strategy, np.arange(4, dtype=np.float32))
    written = variable(strategy, np.ones(4, np.float32), aggregation="ONLY_FIRST_REPLICA")
    given = np.array([*LONG[dtype], 3], dtype)

    @jd.function
    def step(ids: Any) -> Any:
        def replica(ids: Any) -> Any:
            written.scatter_add(jd.IndexedSlices(jnp.ones(len(given)), ids))
            rows = jd.nn.embedding_lookup(table, ids)
            summed = jd.nn.embedding_lookup(table, ids[:, None], combiner="sum")
            return rows, summed, jd.grad(lambda: jd.nn.embedding_lookup(table, ids).sum(), [table])()[0]

        return strategy.run(replica, (ids,))

    found = step(given)
    rows = np.where(given < 4, given.astype(float), np.nan)
    rows[given < 0] = np.nan
    for part in components(found[0]):
        np.testing.assert_array_equal(part, rows)
    summed = np.where(given == -1, 0, rows) if dtype == "int64" else rows  # -1 pads
    for part in components(found[1]):
        np.testing.assert_array_equal(part, summed)
    for part in components(found[2]):
        np.testing.assert_array_equal(part, [1, 0, 0, 1])
    np.testing.assert_array_equal(written, [2, 1, 1, 2])


@pytest.mark.quick_cases(5)
@each_strategy
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_rows_of_a_table_in_compiled_code(make: Callable[[], jd.Strategy], dtype: str) -> None:
    strategy = make()
    table = variable(strategy, np.arange(200, dtype=np.float32))
    given = np.array([*IDS[:4], 200, 255] if dtype != "int8" else [-128, *IDS[1:4], -2, 127]).astype(dtype)
    expected = np.where((given < 0) | (given.astype(int) >= 200), np.nan, given.astype(np.float32))
    result = jd.function(lambda ids: strategy.run(lambda ids: jd.nn.embedding_lookup(table, ids), (ids,)))(given)
    for part in components(result):
        np.testing.assert_array_equal(part, expected)
    plain = jd.function(lambda ids: jd.nn.embedding_lookup(jnp.arange(200.0), ids))(given)
    np.testing.assert_array_equal(plain, expected)


@pytest.mark.quick_cases(8)
@each_strategy
@pytest.mark.parametrize("how", SCATTERED)
def test_writes_of_rows_in_compiled_code(make: Callable[[], jd.Strategy], how: str) -> None:
    strategy = make()
    table = variable(strategy, np.ones(4, np.float32), aggregation="ONLY_FIRST_REPLICA")

    @jd.function
    def step(ids: Any) -> None:
        def write(ids: Any) -> None:
            getattr(table, how)(jd.IndexedSlices(jnp.arange(1.0, 7.0), ids))

        strategy.run(write, (ids,))

    step(np.array(IDS, np.int32))
    np.testing.assert_array_equal(table, SCATTERED[how])


@each_strategy
@each_executor
def test_ids_in_a_list_are_read(make: Callable[[], jd.Strategy], executor: str) -> None:
    strategy = make()
    table = variable(strategy, np.arange(4, dtype=np.float32))
    for part in components(execute(executor, strategy, lambda: table.sparse_read([3, 1]))):
        np.testing.assert_array_equal(part, [3.0, 1.0])


@each_strategy
@each_executor
@pytest.mark.parametrize("wrong", [-1, 4, 2**31, -(2**31) - 1, 2**40])
def test_known_ids_are_refused(make: Callable[[], jd.Strategy], executor: str, wrong: int) -> None:
    strategy = make()
    table = variable(strategy, np.ones(4, np.float32), aggregation="ONLY_FIRST_REPLICA")

    def read() -> Any:
        return strategy.run(lambda: jd.nn.embedding_lookup(table, np.array([0, wrong])))

    with pytest.raises(jd.errors.ArgumentError, match=r"row -?\d+ .*HINT"):
        (jd.function(read) if executor == "compiled" else read)()
    if executor == "lockstep" and abs(wrong) < 2**31:
        with pytest.raises(jd.errors.ArgumentError, match=r"row -?\d+ .*HINT"):
            strategy.run(lambda: table.scatter_add(jd.IndexedSlices(jnp.ones(2), jnp.array([0, wrong]))))
    np.testing.assert_array_equal(table, np.ones(4))
