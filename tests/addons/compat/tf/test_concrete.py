"""`get_concrete_function`: what TensorFlow 2.21 gives for each call, and the errors of others."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute.errors import ArgumentTypeError

ROWS = tf.TensorSpec([None], tf.float32)
X = np.array([1, 2], np.float32)


@tf.function
def scaled(x: Any, training: bool = False, *, scale: Any = 1.0) -> Any:
    return x * (2.0 if training else 1.0) * scale


@tf.function(input_signature=[ROWS])
def signed(x: Any) -> Any:
    return x + 1.0


@tf.function
def total(*parts: Any) -> Any:
    return sum(parts)


@tf.function
def of_nest(batch: Any, iterator: Any = None) -> Any:
    return batch["a"] + batch["b"] + (0 if iterator is None else jnp.float32(next(iterator)))


class Tripling(tf.Module):
    @tf.function
    def call(self, x: Any) -> Any:
        return x * 3.0


MODULE = Tripling()


@pytest.mark.parametrize(
    ("given", "calls", "expected"),
    [
        (lambda: scaled.get_concrete_function(ROWS), [((X,), {}), ((), {"x": X})], [1, 2]),
        (
            lambda: scaled.get_concrete_function(ROWS, True),
            [((X,), {}), ((X, True), {}), ((X,), {"training": True}), (([1.0, 2.0],), {})],
            [2, 4],
        ),
        (
            lambda: scaled.get_concrete_function(ROWS, scale=tf.TensorSpec([], tf.float32)),
            [((X,), {"scale": 3.0}), ((X, jnp.float32(3)), {})],
            [3, 6],
        ),
        (signed.get_concrete_function, [((X,), {})], [2, 3]),
        (lambda: MODULE.call.get_concrete_function(ROWS), [((X,), {})], [3, 6]),
        (lambda: Tripling.call.get_concrete_function(MODULE, ROWS), [((X,), {})], [3, 6]),
        (lambda: total.get_concrete_function(ROWS, ROWS), [((X, X), {})], [2, 4]),
        (lambda: of_nest.get_concrete_function({"a": ROWS, "b": X}), [(({"a": X, "b": X},), {})], [2, 4]),
        (
            lambda: of_nest.get_concrete_function({"a": X, "b": X}, iter(tf.data.Dataset.range(1, 2))),
            [(({"a": X, "b": X}, iter(tf.data.Dataset.range(5, 9))), {})],
            [7, 9],
        ),
    ],
)
def test_takes_what_is_open(given: Any, calls: Any, expected: list[float]) -> None:
    concrete = given()
    for args, kwargs in calls:
        np.testing.assert_allclose(concrete(*args, **kwargs), expected)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((np.ones((1, 1), np.float32),), {}),
        ((np.ones(1, np.int32),), {}),
        ((X, False), {}),
        ((X,), {"training": False}),
        ((X,), {"other": 1}),
        ((X, True, X), {}),
    ],
)
def test_refuses_other_arguments(args: Any, kwargs: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="HINT"):
        scaled.get_concrete_function(ROWS, True)(*args, **kwargs)


def test_refuses_what_is_no_argument_of_the_function() -> None:
    with pytest.raises(TypeError, match="missing"):
        scaled.get_concrete_function()


def test_variables_are_written_and_each_signature_is_traced_once() -> None:
    variable, traced = tf.Variable([0.0, 0.0]), list[int]()

    @tf.function
    def add(to: Any, x: Any) -> Any:
        traced.append(1)
        return to.assign_add(x)

    concrete = add.get_concrete_function(variable, ROWS)
    for _ in range(3):
        concrete(X)
    np.testing.assert_allclose(variable.numpy(), [3, 6])
    assert len(traced) == 1


def test_runs_on_replicas_of_distributed_batches() -> None:
    strategy = jd.MirroredStrategy()
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(np.arange(8.0)).batch(4))

    @tf.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(batch,)), None)

    batches = list(dataset)
    concrete = step.get_concrete_function(batches[0])
    assert [float(concrete(batch)) for batch in batches] == [6.0, 22.0]


def test_runs_a_loop_over_a_dataset() -> None:
    @tf.function
    def count(dataset: Any, step: int) -> Any:
        return sum(step for _ in dataset)

    dataset = tf.data.Dataset.range(3)
    assert count.get_concrete_function(dataset, 2)(tf.data.Dataset.range(5)) == 10
