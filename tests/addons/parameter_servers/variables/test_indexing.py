"""What stands between the brackets of a split variable gives what it gives of the array, and fetches no other rows."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportCallIssue=false

from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import jaxtribute as jd
from jaxtribute._src.addons.parameter_servers.variables.indexing import wanted_rows, with_arrays
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.partitioners import FixedShardsPartitioner
from parameter_servers.clusters import int32, threads

SHAPE = (7, 2, 3)
TABLE = np.arange(42, dtype=np.int32).reshape(SHAPE)


@pytest.fixture(scope="module")
def strategy() -> Generator[Any]:
    with threads(servers=2, partitioner=FixedShardsPartitioner(3)) as made:
        yield made


@pytest.fixture(scope="module")
def table(strategy: Any) -> Any:
    with strategy.scope():
        return jd.Variable(TABLE, name="table")


def of_its_rows(key: Any) -> np.ndarray:
    """The table's elements at `key`, out of the rows alone that an index of a split variable fetches."""
    wanted = wanted_rows(with_arrays(key), SHAPE)
    if wanted is None:
        return TABLE[key]
    rows, index = wanted
    assert len(set(rows.tolist())) == len(rows), "a row is fetched twice"
    return TABLE[rows][index]


@given(key=arrays.basic_indices(SHAPE, allow_newaxis=True))
def test_slices_numbers_and_new_axes(key: Any) -> None:
    np.testing.assert_array_equal(of_its_rows(key), TABLE[key])


BESIDE: list[Any] = [(), (slice(None),), (1,), (slice(None, None, -1), 0), (Ellipsis, -1), ([1, 0, 1],), (0, [2, 0, 1])]


@given(data=st.data())
def test_arrays_of_rows_beside_other_indices(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(3,), (2, 3), (1,)]))
    rows = data.draw(arrays.arrays(np.int64, shape, elements=st.integers(-7, 6)))
    beside = data.draw(st.sampled_from(BESIDE))
    expected = TABLE[(rows, *beside)]
    np.testing.assert_array_equal(of_its_rows((rows, *beside)), expected)
    np.testing.assert_array_equal(of_its_rows((rows.tolist(), *beside)), expected)


@given(data=st.data())
def test_masks(data: st.DataObject) -> None:
    """Of the first axis, of the first two, of all; the first beside another index."""
    mask = data.draw(arrays.arrays(np.bool_, SHAPE[: data.draw(st.integers(1, 3))]))
    np.testing.assert_array_equal(of_its_rows(mask), TABLE[mask])
    if mask.ndim == 1:
        np.testing.assert_array_equal(of_its_rows((mask, 1)), TABLE[mask, 1])


KEYS: list[Any] = [
    np.s_[2:-10:-1], np.s_[5:-1], np.s_[::-3, 1], np.s_[1:3, ..., 0], np.s_[3:5:-1], np.s_[2:3, None],
    (4, 0, 2), -2, np.int64(6), [[5, 1], [0, 0]], ([5, 1], [0, 1]), (int32([[0, 1], [6, 6]]), 0), (slice(1, 3), [1, 0]),
    (1, [1, 0]), [True] * 3 + [False] * 4, TABLE > 30, TABLE[:, 0, 0] > 20, TABLE < 0, (TABLE[:, 1, 0] > 20, 1),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key}"[:40])
def test_a_variable_is_indexed_as_its_array(table: Any, key: Any) -> None:
    expected = TABLE[key]
    np.testing.assert_array_equal(table[key], expected)
    if isinstance(key, np.ndarray):
        np.testing.assert_array_equal(table[jnp.asarray(key)], expected)


def test_rows_of_which_there_are_none_are_errors(table: Any) -> None:
    for key in (7, -8, [0, 7], int32([-8]), (100, 0)):
        with pytest.raises(IndexError, match=r"shape \(7, 2, 3\): .*out of bounds for axis 0 with size 7.*HINT"):
            table[key]
    with pytest.raises(IndexError, match=r"mask of shape \(5,\) does not fit .*\(7, 2, 3\).*HINT"):
        table[np.ones(5, bool)]
    with pytest.raises(IndexError, match=r"mask of shape \(7, 3\)"):
        table[np.ones((7, 3), bool)]
    with pytest.raises(ArgumentTypeError, match=r"index of dtype float64.*HINT"):
        table[[0.5]]


def test_nothing_and_everything(table: Any) -> None:
    for key in ((), Ellipsis, slice(None), None, True, [], slice(5, 3), slice(-1, 0)):
        expected = TABLE[np.zeros(0, int)] if key == [] else TABLE[key]
        np.testing.assert_array_equal(table[key], expected)


def test_only_the_rows_that_are_picked_are_fetched(strategy: Any) -> None:
    with strategy.scope():
        wide = jd.Variable(np.arange(15_000, dtype=np.float32).reshape(60, 250))
    mask = np.zeros((60, 250), bool)
    mask[59, :3] = True
    client = strategy.cluster.client
    for key in (3, slice(58, 60), [1, 1, 1], (int32([4, 4]), int32([0, 1])), mask):
        before = client.received_bytes
        assert wide[key].size > 0
        assert client.received_bytes - before < 3000, key
    np.testing.assert_array_equal(wide[mask], [14_750, 14_751, 14_752])


def test_in_a_compiled_function_and_under_a_gradient(strategy: Any, table: Any) -> None:
    mask = TABLE > 30
    picked = jd.function(lambda: (table[:, 0], table[-1], table[2:5], table[mask], table[int32([6, 0]), 1]))()
    for got, key in zip(picked, [np.s_[:, 0], -1, np.s_[2:5], mask, (int32([6, 0]), 1)], strict=True):
        np.testing.assert_array_equal(got, TABLE[key])
    with strategy.scope():
        weights = jd.Variable(np.ones((5, 2), np.float32))
    mask = np.array([True, False, False, True, False])
    for gradient in (jd.grad, lambda *args: jd.function(jd.grad(*args))):
        (rows,) = gradient(lambda: (weights[mask] * 2).sum() + weights[[3, 3]].sum(), [weights])()
        np.testing.assert_array_equal(rows[:, 0], [2, 0, 0, 4, 0])
    assert isinstance(weights[0], jax.Array)
