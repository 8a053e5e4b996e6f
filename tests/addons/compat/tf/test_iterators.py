"""Iterators of datasets, plain and distributed, in functions that are compiled and outside of them."""

from typing import Any

import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute.errors import TraceError


def numbers(count: int = 3) -> Any:
    return iter(tf.data.Dataset.range(count))


def test_a_compiled_function_reads_what_it_is_passed() -> None:
    @tf.function
    def two(iterator: Any) -> Any:
        return next(iterator) * 10 + next(iterator)

    iterator = numbers(5)
    assert [int(two(iterator)), int(two(iterator)), int(next(iterator))] == [1, 23, 4]


def test_an_iterator_that_is_not_passed_is_refused() -> None:
    iterator = numbers()
    with pytest.raises(TraceError, match=r"not passed.*HINT"):
        tf.function(lambda: next(iterator))()
    assert [int(x) for x in iterator] == [0, 1, 2]
    # A dataset that a function makes is read there, as a whole.
    assert int(tf.function(lambda: sum(tf.data.Dataset.range(4)))()) == 6


def plain(strategy: jd.Strategy) -> Any:
    del strategy
    return numbers()


def distributed(strategy: jd.Strategy) -> Any:
    return iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(12).batch(4)))


@pytest.mark.parametrize("make", [plain, distributed])
@pytest.mark.parametrize("method", ["next", "get_next"])
@pytest.mark.parametrize("error", [tf.errors.OutOfRangeError, StopIteration])
def test_the_end_is_tensorflows_error_and_pythons(make: Any, method: str, error: type[Exception]) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    count = jd.Variable(0)

    @tf.function
    def step(iterator: Any) -> None:
        for _ in range(2):
            next(iterator) if method == "next" else iterator.get_next()
            count.assign_add(1)

    iterator = make(strategy)
    step(iterator)
    with pytest.raises(error, match=r"ended.*HINT"):
        step(iterator)
    # What came before the end has taken effect.
    assert int(count.numpy()) == 3


@pytest.mark.parametrize("make", [plain, distributed])
def test_optionals(make: Any) -> None:
    iterator = make(jd.MirroredStrategy(["CPU:0", "CPU:1"]))
    given = 0
    while (optional := tf.data.experimental.get_next_as_optional(iterator)).has_value():
        optional.get_value()
        given += 1
    assert given == 3
    with pytest.raises(tf.errors.OutOfRangeError):
        iterator.get_next()


def test_an_optional_in_a_compiled_function() -> None:
    @tf.function
    def total(iterator: Any) -> Any:
        found = tf.constant(0)
        for _ in range(2):
            optional = iterator.get_next_as_optional()
            if optional.has_value():
                found += optional.get_value()
        return found

    iterator = numbers()
    assert [int(total(iterator)) for _ in range(3)] == [1, 2, 0]


def test_what_an_iterator_gives() -> None:
    iterator = iter(tf.data.Dataset.from_tensor_slices({"a": [1.0, 2.0]}))
    assert isinstance(iterator, tf.data.Iterator)
    assert iter(iterator) is iterator
    assert iterator.element_spec == {"a": tf.TensorSpec([], tf.float32)}
    assert [float(x["a"]) for x in iterator] == [1.0, 2.0]
