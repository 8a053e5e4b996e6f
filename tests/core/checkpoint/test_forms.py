"""Values keep every bit from one form to another."""

from __future__ import annotations

import json

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.core.checkpoint.forms import Spec, combine, dtype_of, spec_of, to_rows, to_value
from jaxtribute._src.core.types import ArrayLike, HostArray

AGGREGATIONS = ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"]
values = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=0, max_dims=3, max_side=4),
    elements=st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False),
)


@given(values, st.sampled_from(["SUM", "ONLY_FIRST_REPLICA", "NONE"]), st.integers(1, 8))
def test_rows_read_as_the_value_that_they_are_made_of(value: HostArray, how: str, replicas: int) -> None:
    rows = to_rows(value, replicas, how)
    assert rows.shape == (replicas, *value.shape)
    np.testing.assert_array_equal(combine(rows, how), value)


@given(values, st.sampled_from([1, 2, 4]))  # with more, adding them up may round
def test_a_mean_of_equal_rows_is_their_value(value: HostArray, replicas: int) -> None:
    np.testing.assert_array_equal(combine(to_rows(value, replicas, "MEAN"), "MEAN"), value)


@given(values, st.integers(1, 8))
def test_a_flat_value_has_its_shape_again(value: HostArray, replicas: int) -> None:
    flat = np.pad(value.ravel(), (0, -value.size % replicas))
    spec = Spec(value.shape, "float32", "flat")
    np.testing.assert_array_equal(to_value(flat, spec), value)


@given(
    st.builds(
        Spec,
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
        st.sampled_from(["float32", "bfloat16", "int8"]),
        st.sampled_from(["value", "flat", "rows"]),
        st.integers(0, 8),
        st.sampled_from(AGGREGATIONS),
        st.sampled_from([None, "fry"]),
        st.sampled_from([None, "int"]),
    )
)
def test_a_spec_goes_through_json(spec: Spec) -> None:
    assert Spec.from_json(json.loads(json.dumps(spec.as_json()))) == spec


def test_a_spec_says_no_more_than_is_special() -> None:
    assert Spec((2,), "int8").as_json() == {"shape": [2], "dtype": "int8"}


@pytest.mark.parametrize(
    ("value", "text", "python"),
    [
        (3, "int64[]", "int"),
        (True, "bool[]", "bool"),
        (0.5, "float64[]", "float"),
        (np.float16(2), "float16[]", None),
        (np.zeros((2, 3), np.uint8), "uint8[2, 3]", None),
        (jnp.zeros(4, "bfloat16"), "bfloat16[4]", None),
        (jax.random.key(0), "random key (threefry2x32) of data uint32[2]", None),
    ],
)
def test_the_spec_of_a_value(value: ArrayLike, text: str, python: str | None) -> None:
    spec = spec_of(value)
    assert str(spec) == text
    assert spec.python == python
    assert dtype_of(spec.dtype) == np.dtype(spec.dtype)
    assert spec.size == np.prod(spec.shape)
