"""Batches on the host."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import sparse

import jaxtribute as jd
from jaxtribute._src.input.batches import (
    Batch,
    as_array,
    as_batch,
    check_splittable,
    empty_like,
    own,
    path_name,
    rows,
    split,
)
from jaxtribute._src.input.splitting import slice_sizes
from jaxtribute.errors import InputError
from jaxtribute.input import make_numpy_dataset


def test_a_batch_knows_its_rows() -> None:
    batch = as_batch({"x": np.zeros((3, 2)), "y": (np.zeros(3), jnp.zeros((3, 1)))})
    assert (batch.total, batch.start) == (3, 0)


def test_an_unbatched_scalar_has_no_rows() -> None:
    assert as_batch(5).total is None
    assert as_batch((np.float32(1), np.zeros(4))).total is None
    assert as_batch(()).total is None


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(InputError, match=r"element\['x'\]: \(3,\), element\['y'\]: \(2, 2\).*HINT"):
        as_batch({"x": np.zeros(3), "y": np.zeros((2, 2))})


SPARSE: dict[str, Any] = {
    "BCOO": sparse.BCOO.fromdense,
    "BCSR": sparse.BCSR.fromdense,
    "scipy matrix": scipy.sparse.csr_matrix,
    "scipy array": scipy.sparse.coo_array,
}
MATRIX = np.where(np.random.default_rng(0).random((8, 5)) < 0.3, 1.5, 0).astype(np.float32)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_matrices_are_cut_by_rows(kind: str) -> None:
    batch = as_batch({"x": SPARSE[kind](MATRIX), "y": np.arange(8)})
    assert batch.total == 8
    np.testing.assert_array_equal(batch.tree["x"], MATRIX)
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    batches = [(SPARSE[kind](MATRIX[:5]), np.arange(5)), (SPARSE[kind](MATRIX[5:]), np.arange(5, 8))]
    for (x, y), (start, stop) in zip(strategy.experimental_distribute_dataset(batches), [(0, 5), (5, 8)], strict=True):
        found = [np.asarray(part) for part in strategy.experimental_local_results(x)]
        np.testing.assert_array_equal(np.concatenate(found), MATRIX[start:stop])
        assert [len(part) for part in found] == [len(part) for part in strategy.experimental_local_results(y)]


@pytest.mark.parametrize("kind", SPARSE)
def test_a_sparse_matrix_is_no_dataset(kind: str) -> None:
    with pytest.raises(InputError, match=r"sparse matrix of shape \(8, 5\).*HINT: pass matrix.todense"):
        make_numpy_dataset((SPARSE[kind](MATRIX), np.arange(8)))


def test_masked_arrays_are_refused() -> None:
    masked: Any = np.ma.masked_array(np.arange(4.0), mask=[False, True, False, False])
    for take in (as_batch, make_numpy_dataset):
        with pytest.raises(InputError, match=r"masked array of shape \(4,\).*HINT: pass array.filled"):
            take((masked, np.arange(4)))


def test_jax_arrays_stay_where_they_are() -> None:
    array = jnp.arange(3)
    assert as_array(array) is array
    assert isinstance(as_array([1, 2]), np.ndarray)


def test_scalars_are_not_splittable() -> None:
    with pytest.raises(InputError, match=r"element\[1\]: a scalar cannot be split over 4 replicas.*batch\(256\)"):
        check_splittable(as_batch((np.zeros(3), 1.0)), 4)
    assert check_splittable(as_batch(np.zeros(3)), 4) == 3


@given(st.integers(0, 40), st.integers(1, 9))
def test_pieces_join_to_the_whole(count: int, replicas: int) -> None:
    tree = {"a": np.arange(count), "b": np.arange(2 * count).reshape(count, 2)}
    pieces = split(tree, slice_sizes(count, replicas))
    assert len(pieces) == replicas
    for key, whole in tree.items():
        assert np.array_equal(np.concatenate([piece[key] for piece in pieces]), whole)


def test_rows_are_views() -> None:
    array = np.arange(6)
    assert rows({"a": array}, 2, 4)["a"].base is array


def test_empty_like_keeps_shapes_and_dtypes() -> None:
    empty = empty_like({"a": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.uint8)})
    assert empty["a"].shape == (0, 2)
    assert empty["a"].dtype == np.float32
    assert empty["b"].shape == (0,)


def test_own_copies_what_others_may_write_to() -> None:
    array = np.zeros(2)
    copied = own([array])[0]
    array[:] = 1
    assert copied.tolist() == [0, 0]


def test_names_of_places() -> None:
    assert path_name(()) == "element"
    assert Batch(1, None).start == 0
