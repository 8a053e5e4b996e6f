"""Arithmetic, comparisons, reductions and products."""

from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf

MATRIX = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("result", "values", "dtype"),
    [
        (lambda: tf.abs([-1, 2]), [1, 2], "int32"),
        (lambda: tf.negative(2.0), -2.0, "float32"),
        (lambda: tf.square(3), 9, "int32"),
        (lambda: tf.sqrt(4.0), 2.0, "float32"),
        (lambda: tf.math.rsqrt(4.0), 0.5, "float32"),
        (lambda: tf.exp(0.0), 1.0, "float32"),
        (lambda: tf.math.log1p(0.0), 0.0, "float32"),
        (lambda: tf.add(1, 2), 3, "int32"),
        (lambda: tf.subtract([1.0], 2), [-1.0], "float32"),
        (lambda: tf.multiply(2, [1.5]), [3.0], "float32"),
        (lambda: tf.divide([3], [2]), [1.5], "float32"),
        (lambda: tf.math.floordiv(7, 2), 3, "int32"),
        (lambda: tf.math.floormod(7, 2), 1, "int32"),
        (lambda: tf.math.divide_no_nan([1.0, 2.0], [0.0, 4.0]), [0.0, 0.5], "float32"),
        (lambda: tf.maximum([1, 5], 3), [3, 5], "int32"),
        (lambda: tf.pow(2.0, 3), 8.0, "float32"),
        (lambda: tf.equal([1, 2], 2), [False, True], "bool"),
        (lambda: tf.less(1, 2), True, "bool"),
        (lambda: tf.logical_not([True]), [False], "bool"),
        (lambda: tf.math.squared_difference(3.0, 1.0), 4.0, "float32"),
        (lambda: tf.reduce_sum(MATRIX), 10.0, "float32"),
        (lambda: tf.reduce_sum(MATRIX, axis=0), [4.0, 6.0], "float32"),
        (lambda: tf.reduce_sum(MATRIX, axis=[0, 1]), 10.0, "float32"),
        (lambda: tf.reduce_sum(MATRIX, 1, keepdims=True), [[3.0], [7.0]], "float32"),
        (lambda: tf.reduce_sum(tf.constant([1, 2], tf.int8)), 3, "int8"),
        (lambda: tf.reduce_mean([1, 0, 1, 0]), 0, "int32"),
        (lambda: tf.reduce_mean([-3, -4]), -3, "int32"),
        (lambda: tf.reduce_mean(MATRIX), 2.5, "float32"),
        (lambda: tf.reduce_max(MATRIX, axis=1), [2.0, 4.0], "float32"),
        (lambda: tf.reduce_prod([2, 3]), 6, "int32"),
        (lambda: tf.reduce_any([True, False]), True, "bool"),
        (lambda: tf.argmax([[1, 3], [5, 2]], axis=1, output_type=tf.int32), [1, 0], "int32"),
        (lambda: tf.argmax([[1, 3], [5, 2]]), [1, 0], "int32"),
        (lambda: tf.argmin([3, 1], 0), 1, "int32"),
        (lambda: tf.add_n([1, 2, 3]), 6, "int32"),
        (lambda: tf.clip_by_value([-1.0, 0.5, 2.0], 0, 1), [0.0, 0.5, 1.0], "float32"),
        (lambda: tf.matmul(MATRIX, MATRIX), [[7.0, 10.0], [15.0, 22.0]], "float32"),
        (lambda: tf.matmul(MATRIX, MATRIX, transpose_a=True), [[10.0, 14.0], [14.0, 20.0]], "float32"),
        (lambda: tf.matmul(MATRIX, MATRIX, transpose_b=True), [[5.0, 11.0], [11.0, 25.0]], "float32"),
        (lambda: tf.tensordot([1.0, 2.0], [3.0, 4.0], 1), 11.0, "float32"),
        (lambda: tf.einsum("ij,j->i", MATRIX, [1.0, 1.0]), [3.0, 7.0], "float32"),
        (lambda: tf.norm([3.0, 4.0]), 5.0, "float32"),
        (lambda: tf.norm(MATRIX, ord=1), 10.0, "float32"),
        (lambda: tf.linalg.global_norm([[3.0], None, [4.0]]), 5.0, "float32"),
    ],
)
def test_values_and_types(result: Any, values: Any, dtype: str) -> None:
    found = result()
    np.testing.assert_allclose(np.asarray(found), values, rtol=1e-6)
    assert found.dtype == dtype


def test_names_are_told() -> None:
    assert tf.reduce_sum.__name__ == "reduce_sum"
    assert "tf.math.add" in (tf.add.__doc__ or "")


def test_the_argument_name_is_accepted() -> None:
    assert float(tf.add(1.0, 2.0, name="sum")) == 3.0
    assert float(tf.exp(0.0, name="e")) == 1.0


def test_variables_are_operands() -> None:
    variable = jd.Variable([3.0, 4.0])
    assert float(tf.norm(variable)) == 5.0
    assert tf.multiply(variable, 2.0).tolist() == [6.0, 8.0]


@pytest.mark.parametrize(
    ("function", "slope"),
    [
        (tf.abs, 0.0),
        (lambda x: tf.maximum(x, 0.0), 1.0),
        (lambda x: tf.minimum(x, 0.0), 1.0),
        (lambda x: tf.clip_by_value(x, 0.0, 1.0), 1.0),
        (tf.nn.relu, 0.0),
        (tf.nn.leaky_relu, np.float32(0.2)),
        (lambda x: tf.nn.sigmoid_cross_entropy_with_logits(labels=1.0, logits=x), -0.5),
    ],
)
def test_gradients_at_zero_are_those_of_tensorflow(function: Any, slope: float) -> None:
    assert float(jax.grad(function)(0.0)) == slope


def test_what_is_no_number_stays_so() -> None:
    nan = float("nan")
    for found in (tf.maximum(nan, 1.0), tf.maximum(1.0, nan), tf.minimum(nan, 1.0), tf.minimum(1.0, nan), tf.abs(nan)):
        assert np.isnan(found)
    assert tf.abs([-3, 2]).tolist() == [3, 2]
