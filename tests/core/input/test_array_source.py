"""Arrays as a Grain source."""

from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtribute.errors import InputError
from jaxtribute.input import ArraySource, make_numpy_dataset


def test_records_are_rows() -> None:
    source = ArraySource({"x": np.arange(6).reshape(3, 2), "y": jnp.arange(3)})
    assert len(source) == 3
    record = source[1]
    assert record["x"].tolist() == [2, 3]
    assert record["y"] == 1


def test_many_records_at_once() -> None:
    assert ArraySource(np.arange(5) * 10).take(np.array([3, 0])).tolist() == [30, 0]


def test_lists_are_stacked() -> None:
    assert ArraySource([np.zeros(2), np.ones(2)])[1].tolist() == [1, 1]


def test_it_is_a_grain_source() -> None:
    assert isinstance(ArraySource(np.zeros(3)), grain.sources.RandomAccessDataSource)
    assert repr(ArraySource(np.zeros((3, 2), np.float32))) == "ArraySource((3, 2) float32)"


@pytest.mark.parametrize("arrays", [np.float32(1), (), (np.zeros(2), np.zeros(3)), {"a": np.zeros(2), "b": 1}])
def test_arrays_without_a_common_length(arrays: object) -> None:
    with pytest.raises(InputError, match=r"one common length.*HINT"):
        ArraySource(arrays)


def test_make_numpy_dataset_gives_a_grain_dataset() -> None:
    dataset = make_numpy_dataset((np.ones([10], np.float32), np.arange(10)))
    assert isinstance(dataset, grain.MapDataset)
    assert len(dataset) == 10
    batches = list(dataset.batch(4))
    assert [batch[1].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64, jnp.bfloat16, object])
def test_large_batches_are_the_rows_too(dtype: Any) -> None:
    array = np.arange(4_000 * 8).reshape(4_000, 8).astype(dtype)
    indices = np.random.default_rng(0).permutation(4_000)[:3_000]
    taken = ArraySource(array).take(indices)
    assert taken.dtype == array.dtype
    assert np.array_equal(taken, array[indices])


def test_a_batch_shares_no_memory_with_the_arrays() -> None:
    array = np.zeros((1_000, 100), np.float32)
    batch = jax.device_put(ArraySource(array).take(np.arange(1_000)))
    array[:] = 1
    assert not batch.any()
