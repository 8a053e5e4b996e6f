"""Batches on the host."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute.errors import InputError
from jaxtribute.input.batches import (
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
from jaxtribute.input.splitting import slice_sizes


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
