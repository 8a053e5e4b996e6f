"""`tf.custom_gradient`, on one device and in replica functions, in loops and differentiated twice."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute.errors import ArgumentError


@tf.custom_gradient
def log1pexp(x: Any) -> Any:
    e = tf.exp(x)

    def grad(upstream: Any) -> Any:
        return upstream * (1.0 - 1.0 / (1.0 + e))

    return tf.math.log(1.0 + e), grad


@tf.custom_gradient
def reversed_gradient(x: Any, factor: Any = 2.0) -> Any:
    def grad(upstream: Any) -> Any:
        return -factor * upstream

    return tf.identity(x), grad


@tf.custom_gradient
def sum_and_product(x: Any, w: Any) -> Any:
    def grad(of_sum: Any, of_product: Any) -> Any:
        return 10.0 * (of_sum + of_product * w), 100.0 * (of_sum + of_product * x)

    return (x + w, x * w), grad


def test_the_gradient_is_the_functions_own() -> None:
    # By TensorFlow's rule of the derivative this is NaN.
    assert float(jax.grad(log1pexp)(100.0)) == 1.0
    assert float(jax.grad(jax.grad(log1pexp))(0.0)) == pytest.approx(0.25)
    assert float(log1pexp(0.0)) == pytest.approx(np.log(2))


def test_keyword_arguments_and_numbers_are_not_differentiated() -> None:
    ones = jnp.ones(3)
    np.testing.assert_allclose(jax.grad(lambda x: reversed_gradient(x).sum())(ones), [-2.0] * 3)
    np.testing.assert_allclose(jax.grad(lambda x: reversed_gradient(x, factor=0.5).sum())(ones), [-0.5] * 3)


def test_several_arguments_and_results() -> None:
    w, x = tf.Variable(3.0), tf.constant(2.0)
    value, (of_w,) = jd.value_and_grad(lambda: sum(sum_and_product(x, w)), [w])()
    assert float(value) == 2 + 3 + 6
    assert float(of_w) == 100 * (1 + 2)


def test_what_has_no_gradient_is_none_or_an_integer() -> None:
    @tf.custom_gradient
    def power(x: Any, n: Any, unused: Any) -> Any:
        return x**n + 0 * unused, lambda upstream: (upstream * n * x ** (n - 1), upstream, None)

    of_x, of_unused = jax.grad(lambda x, u: power(x, 3, u), argnums=(0, 1))(2.0, 5.0)
    assert (float(of_x), float(of_unused)) == (12.0, 0.0)


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rows", [4, 3])
def test_in_a_step(devices: list[str], compiled: bool, rows: int) -> None:
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        w = tf.Variable([[1.0, 2.0]])
    x = np.arange(8.0, dtype="f").reshape(4, 2)[:rows]

    def replica(x: Any) -> Any:
        _, (gradient,) = jd.value_and_grad(lambda: tf.reduce_sum(reversed_gradient(x * w)), [w])()
        context = tf.distribute.get_replica_context()
        assert context is not None
        return context.all_reduce("SUM", gradient)

    def step(batch: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica, (batch,)), axis=None)

    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(x).batch(rows))
    np.testing.assert_allclose(
        (tf.function(step) if compiled else step)(batch), -2 * x.sum(0, keepdims=True), rtol=1e-6
    )


def test_in_a_loop_that_is_compiled() -> None:
    def looped(x: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (reversed_gradient(carry), None), x, None, length=3)[0].sum()

    np.testing.assert_allclose(jax.jit(jax.grad(looped))(jnp.ones(2)), [-8.0] * 2)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda x: x, r"odd of custom_gradient returns .*HINT: return its result and a function"),
        (lambda x: (x, lambda given: (given, given)), r"returns 2 gradient\(s\) for 1 argument.*HINT: return one"),
        (lambda x: (x, lambda given, variables=None: given), r"odd takes variables.*HINT: make arguments of them"),
    ],
)
def test_other_functions_are_refused(returned: Callable[[Any], Any], told: str) -> None:
    def odd(x: Any) -> Any:
        return returned(x)

    with pytest.raises(ArgumentError, match=told):
        jax.grad(tf.custom_gradient(odd))(1.0)


def test_variables_from_around_the_function_are_refused() -> None:
    w = tf.Variable(3.0)
    times = tf.custom_gradient(lambda x: (x * w, lambda upstream: upstream))
    with pytest.raises(Exception, match="tracer") as error:
        jd.value_and_grad(lambda: times(tf.constant(2.0)), [w])()
    assert any("HINT: what <lambda> is to be differentiated by" in note for note in error.value.__notes__)
