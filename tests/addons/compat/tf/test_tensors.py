"""Arrays by TensorFlow's rules: made, shaped and picked from."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute.compat.tf as tf
from jaxtribute.errors import ArgumentError, ArgumentTypeError

MATRIX = [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("made", "values", "dtype"),
    [
        (lambda: tf.constant(3.0), 3.0, "float32"),
        (lambda: tf.constant([1, 2]), [1, 2], "int32"),
        (lambda: tf.constant(7, shape=(2,)), [7, 7], "int32"),
        (lambda: tf.constant([1, 2, 3, 4], tf.float32, (2, 2)), [[1, 2], [3, 4]], "float32"),
        (lambda: tf.convert_to_tensor([True]), [True], "bool"),
        (lambda: tf.identity(2.5), 2.5, "float32"),
        (lambda: tf.zeros([2]), [0, 0], "float32"),
        (lambda: tf.ones((1, 2), tf.int32), [[1, 1]], "int32"),
        (lambda: tf.zeros_like([1, 2]), [0, 0], "int32"),
        (lambda: tf.ones_like([1.0]), [1], "float32"),
        (lambda: tf.fill([2], 9), [9, 9], "int32"),
        (lambda: tf.eye(2), [[1, 0], [0, 1]], "float32"),
        (lambda: tf.range(3), [0, 1, 2], "int32"),
        (lambda: tf.range(1.0, 2.0, 0.5), [1.0, 1.5], "float32"),
        (lambda: tf.range(5, 1, -2), [5, 3], "int32"),
        (lambda: tf.linspace(0.0, 1.0, 3), [0.0, 0.5, 1.0], "float32"),
        (lambda: tf.cast([1.7], tf.int32), [1], "int32"),
        (lambda: tf.reshape(MATRIX, [3, -1]), [[1, 2], [3, 4], [5, 6]], "int32"),
        (lambda: tf.reshape(MATRIX, tf.shape(tf.zeros([6]))), [1, 2, 3, 4, 5, 6], "int32"),
        (lambda: tf.expand_dims([1, 2], 0), [[1, 2]], "int32"),
        (lambda: tf.squeeze([[1], [2]], [1]), [1, 2], "int32"),
        (lambda: tf.transpose(MATRIX), [[1, 4], [2, 5], [3, 6]], "int32"),
        (lambda: tf.transpose(MATRIX, perm=[0, 1]), MATRIX, "int32"),
        (lambda: tf.stack([1, 2]), [1, 2], "int32"),
        (lambda: tf.stack([[1], [2]], axis=1), [[1, 2]], "int32"),
        (lambda: tf.concat([[1], [2, 3]], 0), [1, 2, 3], "int32"),
        (lambda: tf.split(tf.range(4), 2)[1], [2, 3], "int32"),
        (lambda: tf.split(tf.range(4), [1, 3])[1], [1, 2, 3], "int32"),
        (lambda: tf.unstack(MATRIX)[1], [4, 5, 6], "int32"),
        (lambda: tf.unstack(MATRIX, num=3, axis=1)[0], [1, 4], "int32"),
        (lambda: tf.tile([1, 2], [2]), [1, 2, 1, 2], "int32"),
        (lambda: tf.pad([1], [[1, 2]]), [0, 1, 0, 0], "int32"),
        (lambda: tf.pad([1, 2, 3], [[1, 0]], "REFLECT"), [2, 1, 2, 3], "int32"),
        (lambda: tf.gather(MATRIX, [1]), [[4, 5, 6]], "int32"),
        (lambda: tf.gather(MATRIX, [2, 0], axis=1), [[3, 1], [6, 4]], "int32"),
        (lambda: tf.where([True, False], [1, 2], [3, 4]), [1, 4], "int32"),
        (lambda: tf.where([False, True]), [[1]], "int32"),
        (lambda: tf.one_hot([0, 2], 3), [[1, 0, 0], [0, 0, 1]], "float32"),
        (lambda: tf.one_hot([1], 2, on_value=5, off_value=-1, dtype=tf.int32), [[-1, 5]], "int32"),
        (lambda: tf.shape(MATRIX), [2, 3], "int32"),
    ],
)
def test_values_and_types(made: Any, values: Any, dtype: str) -> None:
    result = made()
    np.testing.assert_array_equal(np.asarray(result), values)
    assert result.dtype == dtype


def test_size_and_rank() -> None:
    assert tf.size(MATRIX) == 6
    assert tf.rank(MATRIX) == 2


def test_is_tensor() -> None:
    assert tf.is_tensor(tf.constant(1))
    assert not tf.is_tensor(np.ones(1))
    assert isinstance(tf.constant(1), tf.Tensor)


def test_no_gradient_flows_through_stop_gradient() -> None:
    assert jax.grad(lambda x: x * tf.stop_gradient(x))(3.0) == 3.0


def test_shapes_are_known_while_a_function_is_traced() -> None:
    @tf.function
    def rows(x: Any) -> Any:
        return x / tf.cast(tf.shape(x)[0], tf.float32)

    assert rows(jnp.ones(4)).tolist() == [0.25] * 4


def test_unstack_checks_the_number() -> None:
    with pytest.raises(ArgumentError, match=r"num=5.*HINT"):
        tf.unstack(MATRIX, num=5)


def test_axes_can_be_made_with_newaxis() -> None:
    assert tf.constant([1, 2])[:, tf.newaxis].shape == (2, 1)


TENSOR, VARIABLE = jnp.float32([1.5]), tf.Variable([1.5, -2.5])


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.constant(1.5, tf.int32),
        lambda: tf.constant([1.5], tf.int32),
        lambda: tf.constant([[1, 2.5]], dtype="uint8"),
        lambda: tf.constant(1, tf.bool),
        lambda: tf.constant(True, tf.int32),
        lambda: tf.constant(1j, tf.float32),
        lambda: tf.convert_to_tensor(1.5, tf.int32),
        lambda: tf.convert_to_tensor(TENSOR, tf.int32),
        lambda: tf.convert_to_tensor(TENSOR, dtype=tf.float16),
        lambda: tf.convert_to_tensor(VARIABLE, dtype=tf.int32),
        lambda: tf.Variable(tf.constant(1), dtype=tf.float32),
        lambda: tf.Variable(1.5, dtype=tf.int32),
    ],
)
def test_what_would_lose_a_part_is_refused_as_in_tensorflow(make: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentTypeError, match=r"HINT: tf\.cast"):
        make()


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: tf.constant(2, tf.float32), "float32"),
        (lambda: tf.constant(True, tf.bool), "bool"),
        (lambda: tf.constant([], tf.int32), "int32"),
        (lambda: tf.constant(1, tf.complex64), "complex64"),
        (lambda: tf.constant(np.asarray([1.5], np.float32), tf.int32), "int32"),
        (lambda: tf.convert_to_tensor(np.arange(3.0), tf.float32), "float32"),
        (lambda: tf.convert_to_tensor(TENSOR, tf.float32), "float32"),
        (lambda: tf.convert_to_tensor(VARIABLE, tf.float32), "float32"),
        (lambda: tf.Variable(1, dtype=tf.float32), "float32"),
        (lambda: tf.Variable(np.arange(3), dtype=tf.float32), "float32"),
    ],
)
def test_what_keeps_all_is_converted(make: Callable[[], Any], dtype: str) -> None:
    assert make().dtype == dtype


def test_rows_become_the_whole_array() -> None:
    slices = tf.IndexedSlices(jnp.float32([[1], [2], [4]]), jnp.int32([2, 2, 0]), (3, 1))
    np.testing.assert_array_equal(tf.convert_to_tensor(slices), [[4], [0], [3]])
    assert float(tf.reduce_sum(slices)) == 7.0
    with pytest.raises(ArgumentError, match="HINT: give IndexedSlices a dense_shape"):
        tf.convert_to_tensor(tf.IndexedSlices(jnp.ones((1, 1)), jnp.int32([0])))


def test_variables_are_tensors_too() -> None:
    assert [tf.is_tensor(value) for value in (VARIABLE, TENSOR, 1.5, [1.5], np.ones(2))] == [
        True,
        True,
        False,
        False,
        False,
    ]
