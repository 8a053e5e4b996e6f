"""Datasets of `compat.tf` as Grain's."""

import grain
import numpy as np
import pytest

import jaxtribute.compat.tf as tf


def numbers(indexed: bool) -> tf.data.Dataset:
    dataset = tf.data.Dataset.range(5)
    return dataset if indexed else dataset.filter(lambda x: True)


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("anew", [None, False, True])
def test_each_iterator_is_a_pass(indexed: bool, anew: bool | None) -> None:
    whole = numbers(indexed)
    whole = whole if anew is None else whole.shuffle(5, 0, reshuffle_each_iteration=anew)
    dataset = whole.to_grain()
    assert isinstance(dataset, grain.IterDataset)
    passes = [[int(x) for x in dataset] for _ in range(6)]
    assert all(sorted(each) == [0, 1, 2, 3, 4] for each in passes)
    assert (len(set(map(tuple, passes))) > 1) == (anew is True)
    if anew is None:
        assert passes[0] == [0, 1, 2, 3, 4]


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
    np.testing.assert_equal(state, {"number": 0, "given": 2})
