"""Datasets of `compat.tf` as Grain's."""

from typing import Any

import grain
import numpy as np
import pytest

import jaxtribute.compat.tf as tf


def numbers(indexed: bool) -> tf.data.Dataset:
    dataset = tf.data.Dataset.range(5)
    return dataset if indexed else dataset.filter(lambda x: True)


@pytest.mark.parametrize(("indexed", "kind"), [(True, grain.MapDataset), (False, grain.IterDataset)])
def test_the_elements_are_the_same_in_each_pass(indexed: bool, kind: type[Any]) -> None:
    dataset = numbers(indexed).to_grain()
    assert isinstance(dataset, kind)
    assert [int(x) for x in dataset] == [int(x) for x in dataset] == [0, 1, 2, 3, 4]


def test_a_stream_takes_grains_transformations_and_keeps_its_position() -> None:
    dataset = numbers(indexed=False).to_grain().map(lambda x: x * 10)
    assert isinstance(dataset, grain.IterDataset)
    iterator = iter(dataset)
    assert [int(next(iterator)) for _ in range(2)] == [0, 10]
    state = iterator.get_state()
    rest = [int(x) for x in iterator]
    again = iter(dataset)
    again.set_state(state)
    assert [int(x) for x in again] == rest == [20, 30, 40]
    np.testing.assert_equal(state, {"given": 2})
