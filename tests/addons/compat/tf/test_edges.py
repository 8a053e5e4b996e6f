"""At the limits of what operations take `compat.tf` gives what TensorFlow 2.21 gave, or raises an error as it did."""

import json
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from compat.tf.edges import EDGES
from jaxtribute.errors import ArgumentError, ArgumentTypeError

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "edges.json").read_text())

DO_NOT_FIT = [
    "tf.constant(2**31)",
    "tf.constant([[1], [-(2**31) - 1]])",
    "tf.constant(3000000000, tf.int64)",
    "tf.constant(np.int64(2**31))",
    "tf.convert_to_tensor([2**40])",
    "tf.cast(2**31, tf.float32)",
    "tf.Variable(2**31)",
    "tf.Variable([1, 2**40], dtype=tf.int64)",
    "tf.fill([2], 2**31)",
    "tf.range(2**31, 2**31 + 2)",
    "tf.maximum(2**31, 1)",
    "tf.add(np.array([2**40]), 1)",
    "tf.add(tf.constant([1]), np.array([2**40]))",
    "tf.reduce_sum([2**31, 1])",
    "tf.stack([2**31, 1])",
    "tf.where([True], 2**31, 1)",
    "tf.gather([1, 2], 2**31)",
    "tf.strings.to_number('3000000000', tf.int32)",
    "tf.strings.to_number('3000000000', tf.int64)",
    "tf.constant(np.uint64(2**63))",
]
FIT = [
    "tf.constant(np.arange(3))",
    "tf.constant(np.int64(-(2**31)))",
    "tf.constant([1], tf.int64)",
    "tf.Variable(np.arange(3))",
    "tf.gather([1, 2], np.array([0]))",
    "tf.add(tf.constant([1]), np.arange(1))",
    "tf.strings.to_number('2147483647', tf.int64)",
    "tf.cast(np.arange(3), tf.int64)",
]


@pytest.fixture
def wide() -> Generator[None]:
    """64-bit types, as in TensorFlow, and arrays of different rank broadcast."""
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def check(seen: Any, recorded: Any) -> None:
    if isinstance(recorded, list):
        assert len(seen) == len(recorded)
        for part, expected in zip(seen, recorded, strict=True):
            check(part, expected)
        return
    array = np.asarray(seen)
    assert list(array.shape) == recorded["shape"]
    if recorded["dtype"] == "string":
        assert [one.decode("latin-1") for one in array.ravel()] == recorded["values"]
    else:
        assert array.dtype.name == recorded["dtype"]
        np.testing.assert_allclose(array.ravel(), np.ravel(recorded["values"]), rtol=1e-5, atol=1e-6)


def test_everything_is_recorded() -> None:
    assert list(RECORDED) == EDGES


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("text", EDGES)
def test_does_what_tensorflow_does(text: str) -> None:
    if RECORDED[text] == "raises":
        with pytest.raises(Exception):  # noqa: B017, PT011
            eval(text, {"tf": tf, "np": np})
    else:
        check(eval(text, {"tf": tf, "np": np}), RECORDED[text])


@pytest.mark.parametrize("text", DO_NOT_FIT)
def test_integers_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"cannot hold.*HINT"):
        eval(text, {"tf": tf, "np": np})


@pytest.mark.parametrize("text", FIT)
def test_integers_of_64_bits_that_fit_are_taken_without_a_word(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.asarray(eval(text, {"tf": tf, "np": np})).dtype == np.int32


class TestIndicesThatAreKnownLater:
    """They are zeros when they are read, as in TensorFlow on GPUs, and left out when they are written."""

    @pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
    @pytest.mark.parametrize("kind", ["int32", "int8", "uint8"])
    def test_reads(self, dtype: str, kind: str) -> None:
        array = jnp.ones((3, 2), dtype)
        numbers = jnp.array([0, 3, 200 if kind == "uint8" else -1], kind)
        rows = jd.function(lambda i: tf.gather(array, i))(numbers)
        assert np.asarray(rows).tolist() == [[1, 1], [0, 0], [0, 0]]
        columns = jd.function(lambda i: tf.gather(array, i, axis=1))(numbers)
        assert np.asarray(columns).tolist() == [[1, 0, 0]] * 3
        of_each = jd.function(lambda i: tf.gather(array, i[:, None], batch_dims=1))(numbers)
        assert np.asarray(of_each).tolist() == [[1], [0], [0]]
        places = jd.function(lambda i: tf.gather_nd(array, jnp.stack([i, i * 0], -1)))(numbers)
        assert np.asarray(places).tolist() == [1, 0, 0]

    def test_writes(self) -> None:
        written = jd.function(lambda i: tf.tensor_scatter_nd_update([1, 2], i[:, None], [7, 8, 9]))(
            jnp.array([1, 2, -1])
        )
        assert np.asarray(written).tolist() == [1, 7]

    def test_labels(self) -> None:
        losses = jd.function(lambda i: tf.nn.sparse_softmax_cross_entropy_with_logits(i, tf.zeros([3, 2])))
        assert np.isnan(losses(jnp.array([1, 2, -1]))).tolist() == [False, True, True]


@pytest.mark.parametrize(
    "text",
    [
        "tf.gather([1, 2], [5])",
        "tf.gather([1, 2], [-1])",
        "tf.gather_nd([1, 2], [[5]])",
        "tf.tensor_scatter_nd_update([1, 2], [[9]], [7])",
        "tf.slice([1, 2], [1], [4])",
        "tf.split([1, 2], [1, 2])",
        "tf.pad([[1]], [[1, 2]])",
        "tf.tile([[1]], [2])",
        "tf.nn.sparse_softmax_cross_entropy_with_logits([3], tf.zeros([1, 3]))",
        "tf.multiply(tf.constant([3]), np.float32(2.5))",
    ],
)
def test_errors_say_what_to_write(text: str) -> None:
    with pytest.raises(ArgumentError, match="HINT"):
        eval(text, {"tf": tf, "np": np})


@pytest.mark.parametrize(
    "text", ["tf.reduce_mean(x)", "tf.add(x, x)", "tf.square(x)", "tf.matmul(x, x)", "tf.cumsum(x)"]
)
def test_bools_are_no_numbers(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"of bools\. HINT"):
        eval(text, {"tf": tf, "x": tf.constant([[True]])})
