import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.values.operators import operand
from replicas import mirrored, variable

FLOATS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge]
BITS = [operator.and_, operator.or_, operator.xor]
LEFT = np.array([1.0, 5.0, 3.0], np.float32)
RIGHT = np.array([2.0, 2.0, 4.0], np.float32)


def holders(value: Any) -> list[Any]:
    """The value in everything that stands for one array."""
    strategy = mirrored(2)
    return [jd.Variable(value), variable(strategy, value), strategy.place(value)]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("function", [*FLOATS, *COMPARISONS])
def test_binary_operators_from_both_sides(function: Callable[[Any, Any], Any]) -> None:
    expected = function(LEFT, RIGHT)
    for left, right in zip(holders(LEFT), holders(RIGHT), strict=True):
        for result in (function(left, right), function(left, RIGHT), function(jnp.asarray(LEFT), right)):
            np.testing.assert_allclose(np.asarray(operand(result)), expected, rtol=1e-6)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("function", FLOATS)
def test_python_numbers_on_either_side(function: Callable[[Any, Any], Any]) -> None:
    for value in holders(LEFT):
        np.testing.assert_allclose(function(value, 2.0), function(LEFT, np.float32(2)), rtol=1e-6)
        np.testing.assert_allclose(function(2.0, value), function(np.float32(2), LEFT), rtol=1e-6)


@pytest.mark.parametrize("function", BITS)
def test_bit_operators(function: Callable[[Any, Any], Any]) -> None:
    left, right = np.array([1, 6], np.int32), np.array([3, 5], np.int32)
    for one, two in zip(holders(left), holders(right), strict=True):
        np.testing.assert_array_equal(function(one, two), function(left, right))
        np.testing.assert_array_equal(function(jnp.asarray(left), two), function(left, right))


def test_matmul_from_both_sides() -> None:
    square = np.arange(4, dtype=np.float32).reshape(2, 2)
    for value in holders(square):
        np.testing.assert_allclose(value @ square, square @ square)
        np.testing.assert_allclose(jnp.asarray(square) @ value, square @ square)


@pytest.mark.parametrize("function", [operator.neg, operator.pos, abs])
def test_unary_operators(function: Callable[[Any], Any]) -> None:
    for value in holders(-LEFT):
        np.testing.assert_array_equal(function(value), function(-LEFT))
    for value in holders(np.array([1, -3], np.int32)):
        np.testing.assert_array_equal(~value, [-2, 2])


def test_conversions() -> None:
    for value in holders(np.float32(2.5)):
        assert float(value) == 2.5
        assert int(value) == 2
        assert bool(value) is True
        assert f"{value:.2f}" == "2.50"
        assert f"{value}" == str(value)
        assert value.shape == ()
        assert value.ndim == 0
        assert value.dtype == np.float32


def test_sequences() -> None:
    for value in holders(LEFT):
        assert len(value) == 3
        assert [float(x) for x in value] == [1.0, 5.0, 3.0]
        assert float(value[1]) == 5.0
        assert value[:2].tolist() == [1.0, 5.0]


def test_arrays_from_values() -> None:
    for value in holders(LEFT):
        copy = value.numpy()
        assert isinstance(copy, np.ndarray)
        copy[:] = -1
        np.testing.assert_array_equal(np.asarray(value), LEFT)
        np.testing.assert_array_equal(np.asarray(value, np.float64), LEFT.astype(np.float64))
        np.testing.assert_array_equal(jnp.asarray(value), LEFT)
        np.testing.assert_array_equal(jnp.sin(jnp.asarray(value)), jnp.sin(LEFT))
        np.testing.assert_array_equal(jnp.stack([value]), LEFT[None])
        np.testing.assert_array_equal(jax.jit(lambda x: x * 2)(operand(value)), LEFT * 2)


def test_a_mirrored_value_goes_into_jax_functions_as_it_is() -> None:
    value = mirrored(2).place(LEFT)
    np.testing.assert_array_equal(jnp.sin(value), jnp.sin(LEFT))  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(jnp.dot(value, RIGHT), jnp.dot(LEFT, RIGHT))  # pyright: ignore[reportArgumentType]


def test_operand_leaves_everything_else() -> None:
    thing = object()
    assert operand(thing) is thing
    assert operand(3) == 3


def test_what_only_arrays_have_is_refused_and_its_place_is_told() -> None:
    for value in holders(LEFT):
        with pytest.raises(AttributeError, match=r"no attribute 'addressable_shards'. HINT: use read_value\(\)"):
            _ = value.addressable_shards
        assert not hasattr(value, "copy_to_host_async")


def test_reading_an_attribute_meets_no_hook() -> None:
    # One `__getattr__` in the classes would make each step read each of its variables three times slower.
    assert not any("__getattr__" in vars(base) for base in jd.Variable.__mro__)
    assert "_data" not in vars(jd.Variable(0.0))
