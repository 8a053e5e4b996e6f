"""Batches on the host and their shapes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import sparse

import jaxtribute as jd
from jaxtribute._src.core.input.batches import (
    Batch,
    array_spec,
    as_array,
    as_batch,
    check_splittable,
    copied,
    empty_like,
    path_name,
    replica_spec,
    rows,
    split,
    tree_spec,
)
from jaxtribute._src.core.input.splitting import Shard, slice_sizes
from jaxtribute._src.core.values.spec import ArraySpec, PerReplicaSpec
from jaxtribute.errors import ArgumentTypeError, InputError
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
    with pytest.raises(
        InputError, match=r"element\[1\]: a scalar cannot be split over 4 replicas.*batch\(256\).*beside the batch"
    ):
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


def test_arrays_that_others_may_write_to_are_copied() -> None:
    array = np.zeros(2)
    kept = copied([array])[0]
    array[:] = 1
    assert kept.tolist() == [0, 0]


def test_names_of_places() -> None:
    assert path_name(()) == "element"
    assert Batch(1, None).start == 0


def struct(*shape: int | None, dtype: object = np.float32) -> ArraySpec:
    return ArraySpec(shape, dtype)


def test_dtypes_are_those_that_jax_would_hold() -> None:
    assert array_spec(np.zeros(2, np.int64)).dtype == jnp.int32
    assert array_spec(np.zeros(2, np.uint8)).dtype == np.uint8
    assert array_spec(jnp.zeros(2, jnp.bfloat16)).dtype == jnp.bfloat16
    assert array_spec(np.array([b"ab"])).dtype == np.dtype("S2")
    assert array_spec(np.array([None])).dtype == np.dtype(object)


def test_rows_vary_unless_they_are_static() -> None:
    tree = {"x": np.zeros((4, 3), np.float32), "s": np.zeros((), np.float32)}
    assert tree_spec(tree, static=False) == {"x": struct(None, 3), "s": struct()}
    assert tree_spec(tree, static=True) == {"x": struct(4, 3), "s": struct()}


def test_one_replica_has_plain_specs() -> None:
    assert replica_spec(struct(4, 3), Shard(), split=True) == struct(4, 3)


def test_a_divided_batch_has_static_rows() -> None:
    spec = replica_spec({"x": struct(8, 3)}, Shard(1, 0, 4), split=True)
    assert spec == {"x": PerReplicaSpec((struct(2, 3),) * 4)}
    assert spec["x"].shape == (2, 3)
    assert spec["x"].dtype == np.float32


def test_other_rows_are_unknown() -> None:
    for count in (7, None):
        spec = replica_spec(struct(count, 3), Shard(1, 0, 4), split=True)
        assert spec.shape == (None, 3)


def test_a_worker_describes_its_own_replicas() -> None:
    assert len(replica_spec(struct(8), Shard(2, 1, 4), split=True).components) == 2


def test_batches_of_a_replicas_own_are_not_cut() -> None:
    assert replica_spec(struct(8), Shard(1, 0, 4), split=False).shape == (8,)


def test_specs_are_values_that_print() -> None:
    spec = PerReplicaSpec((struct(1), struct(1)))
    assert spec == PerReplicaSpec((struct(1), struct(1)))
    assert len({spec, PerReplicaSpec((struct(1), struct(1)))}) == 1
    assert repr(spec).startswith("PerReplicaSpec(ArraySpec((1,), float32)")
    assert jax.tree.leaves({"x": spec}) == [spec]


def test_a_spec_takes_names_of_dtypes_and_random_keys() -> None:
    assert ArraySpec([2, None], "bfloat16") == ArraySpec((2, None), jnp.bfloat16)  # pyright: ignore[reportArgumentType]
    key = jax.random.key(0)
    assert ArraySpec((), key.dtype).dtype == key.dtype
    assert repr(ArraySpec((None, 3), np.int32)) == "ArraySpec((None, 3), int32)"


@pytest.mark.parametrize(("shape", "dtype"), [((1.5,), np.float32), (3, np.float32), ((3,), "floaty"), ((-1,), "int8")])
def test_what_describes_no_array_is_refused(shape: Any, dtype: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="HINT"):
        ArraySpec(shape, dtype)


def test_a_spec_is_enough_for_jax_to_trace_a_function() -> None:
    def double(x: Any) -> Any:
        return x * 2

    assert jax.eval_shape(double, ArraySpec((2, 3), np.float32)).shape == (2, 3)
