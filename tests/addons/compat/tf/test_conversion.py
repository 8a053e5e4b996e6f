"""Conversion to arrays by TensorFlow's rules."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.compat.tf.conversion import as_tensor, host_array, operands


class TestHostArray:
    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            (1.5, "float32"),
            ([1.5, 2.0], "float32"),
            (3, "int32"),
            ([[1], [2]], "int32"),
            (True, "bool"),
            (1j, "complex128"),
            (np.float64(2.0), "float64"),
            (np.arange(3), "int64"),
            ([np.float64(1.0), np.float64(2.0)], "float64"),
        ],
    )
    def test_dtype(self, value: Any, dtype: str) -> None:
        assert host_array(value).dtype == dtype

    def test_arrays_of_jax_keep_their_type(self) -> None:
        assert host_array(jnp.ones(2, jnp.int8)).dtype == np.int8

    def test_strings_are_bytes(self) -> None:
        assert host_array(["a", "bé"]).tolist() == [b"a", "bé".encode()]
        assert host_array([b"a"]).dtype == object

    def test_variables_are_their_values(self) -> None:
        assert host_array(jd.Variable(2.0)).tolist() == 2.0

    def test_an_explicit_type_wins(self) -> None:
        assert host_array([1, 2], np.float32).dtype == np.float32


class TestAsTensor:
    def test_numbers_are_arrays_of_jax(self) -> None:
        assert isinstance(as_tensor(1), jax.Array)
        assert not as_tensor(1.0).weak_type

    def test_arrays_of_jax_are_returned_as_they_are(self) -> None:
        array = jnp.ones(2)
        assert as_tensor(array) is array
        assert as_tensor(array, np.float32) is array

    def test_64_bits_become_32_without_a_word(self) -> None:
        assert as_tensor(np.arange(2)).dtype == np.int32
        assert as_tensor([1.0], np.float64).dtype == np.float32

    def test_strings_stay_on_the_host(self) -> None:
        assert isinstance(as_tensor("text"), np.ndarray)
        assert as_tensor("text").item() == b"text"

    def test_lists_of_traced_arrays_are_stacked(self) -> None:
        assert jax.jit(lambda x: as_tensor([x, x * 2]))(jnp.float32(1)).tolist() == [1.0, 2.0]

    def test_variables_and_mirrored_values(self) -> None:
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            variable = jd.Variable([1.0, 2.0])
        assert as_tensor(variable).tolist() == [1.0, 2.0]
        assert as_tensor(strategy.place(np.float32(3.0))).tolist() == 3.0


def test_numbers_take_the_type_of_the_other_operand() -> None:
    tensor = jnp.ones(2, "float16")
    assert operands(2, tensor)[0] == 2
    for other in ([2], np.float64(2), np.arange(2)):
        assert [one.dtype for one in operands(tensor, other)] == ["float16"] * 2
    assert [one.dtype for one in operands(2, 2.5)] == ["int32", "float32"]
