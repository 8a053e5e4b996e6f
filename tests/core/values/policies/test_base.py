from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.core.values.policies.base import Update, coerce
from jaxtribute.errors import ArgumentTypeError, ShapeError, VariableError
from replicas import fraction, mirrored

NAMES = ["bool", "int8", "uint8", "int32", "float16", "bfloat16", "float32", "complex64"]


@pytest.mark.parametrize(("update", "expected"), [("assign", 2.0), ("assign_add", 7.0), ("assign_sub", 3.0)])
def test_updates(update: str, expected: float) -> None:
    assert Update(update).apply(5.0, 2.0) == expected


@settings(max_examples=60)
@given(source=st.sampled_from(NAMES), target=st.sampled_from(NAMES))
def test_host_arrays_are_cast_within_their_kind(source: str, target: str) -> None:
    v = jd.Variable(jnp.zeros(2, target))
    host = np.asarray(jnp.ones(2, source))
    if np.can_cast(host.dtype, v.dtype, "same_kind"):
        value = coerce(v, host)
        assert value.dtype == v.dtype
        np.testing.assert_array_equal(np.asarray(value, np.complex64), np.ones(2))
    else:
        with pytest.raises(ArgumentTypeError, match=rf"to Variable:0 of dtype {target}.*HINT"):
            coerce(v, host)


@settings(max_examples=60)
@given(source=st.sampled_from(NAMES), target=st.sampled_from(NAMES))
def test_device_arrays_are_never_cast(source: str, target: str) -> None:
    v = jd.Variable(jnp.zeros(2, target))
    if source == target:
        assert coerce(v, jnp.ones(2, source)).dtype == target
    else:
        with pytest.raises(ArgumentTypeError, match=rf"has dtype {target}, the assigned array {source}.*astype"):
            coerce(v, jnp.ones(2, source))


def test_weak_device_arrays_are_cast() -> None:
    v = jd.Variable(jnp.zeros((), jnp.bfloat16))
    assert coerce(v, jnp.asarray(2.0)).dtype == jnp.bfloat16


@pytest.mark.parametrize("value", [2, 2.5, True])
def test_python_numbers_fit_floats(value: Any) -> None:
    for name in ("float16", "bfloat16", "float32", "complex64"):
        assert coerce(jd.Variable(jnp.zeros((), name)), value).dtype == name


def test_values_that_stand_for_arrays() -> None:
    v = jd.Variable([0.0, 0.0])
    np.testing.assert_array_equal(coerce(v, jd.Variable([1.0, 2.0])), [1.0, 2.0])
    np.testing.assert_array_equal(coerce(v, mirrored(2).place(jnp.arange(2.0))), [0.0, 1.0])


def test_refusals() -> None:
    v = jd.Variable([0.0, 0.0], name="w")
    with pytest.raises(ShapeError, match=r"w:0 has shape \(2,\), the assigned value \(1, 2\).*HINT"):
        coerce(v, jnp.zeros((1, 2)))
    with pytest.raises(VariableError, match=r"w:0 has one value, but a PerReplica with 3.*HINT"):
        coerce(v, mirrored(3).run(fraction))
