"""Iterables of batches."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.input.sources import adapt
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute.errors import InputError


class Pass:
    """An iterable that knows how many of its passes are open."""

    def __init__(self) -> None:
        self.open = 0

    def __iter__(self) -> Iterator[Any]:
        self.open += 1
        try:
            for number in range(3):
                yield np.full(2, number)
        finally:
            self.open -= 1


def test_closing_a_stream_ends_its_generator() -> None:
    passes = Pass()
    stream = adapt(passes).open(Shard())
    next(stream)
    assert passes.open == 1
    stream.close()
    assert passes.open == 0


def test_the_users_own_generator_is_not_closed() -> None:
    generator = (np.full(2, number) for number in range(3))
    stream = adapt(generator).open(Shard())
    next(stream)
    stream.close()
    assert next(generator).tolist() == [1, 1]


def test_a_list_is_entered_anywhere() -> None:
    stream = adapt([np.full(2, number) for number in range(5)]).open(Shard())
    next(stream)
    stream.set_state({"batches": 4})
    assert next(stream).tree.tolist() == [4, 4]
    stream.set_state({"batches": 0})
    assert next(stream).tree.tolist() == [0, 0]
    assert stream.get_state() == {"batches": 1}


def test_other_iterables_are_read_up_to_the_position() -> None:
    stream = adapt(Pass()).open(Shard())
    stream.set_state({"batches": 2})
    assert next(stream).tree.tolist() == [2, 2]
    with pytest.raises(InputError, match="cannot go to batch 1 from batch 3"):
        stream.set_state({"batches": 1})
    stream.close()


def test_a_generator_goes_nowhere() -> None:
    stream = adapt(np.full(2, number) for number in range(3)).open(Shard())
    stream.set_state({"batches": 0})
    with pytest.raises(InputError, match=r"one-shot iterator.*HINT"):
        stream.set_state({"batches": 2})


def test_another_pass_over_a_generator_goes_on_and_is_refused_once_it_has_ended() -> None:
    source = adapt(np.full(2, number) for number in range(3))
    first = source.open(Shard())
    next(first)
    first.close()
    second = source.open(Shard())
    assert [next(second).tree.tolist() for _ in range(2)] == [[1, 1], [2, 2]]
    with pytest.raises(StopIteration):
        next(second)
    with pytest.raises(InputError, match=r"one-shot iterator, which has ended. HINT: distribute a list"):
        next(source.open(Shard()))


@pytest.mark.parametrize("devices", [1, 2])
def test_a_loop_over_epochs_does_not_end_silently_with_the_first(devices: int) -> None:
    data = jd.MirroredStrategy(devices).experimental_distribute_dataset(np.full(4, number) for number in range(3))
    assert sum(1 for _ in data) == 3
    with pytest.raises(InputError, match="which has ended"):
        next(iter(data))


def test_lengths() -> None:
    assert adapt([np.zeros(3), np.zeros(2)]).length() == (2, 5)
    assert adapt([1.0, 2.0]).length() is None
    assert adapt(Pass()).length() is None


def test_looking_at_the_first_batch_of_a_generator_keeps_it() -> None:
    source = adapt(np.full(2, number) for number in range(2))
    assert source.spec() == source.spec()
    stream = source.open(Shard())
    assert [next(stream).tree[0] for _ in range(2)] == [0, 1]
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("read", range(4))
def test_looking_at_the_first_batch_within_a_pass_takes_nothing_from_it(read: int) -> None:
    source = adapt(np.full(number + 1, number) for number in range(3))
    stream = source.open(Shard())
    given = [next(stream).tree[0] for _ in range(min(read, 3))]
    assert next(stream, None) is None if read == 3 else True
    first = source.first()
    assert isinstance(first, np.ndarray)
    assert first.tolist() == [0]
    while (batch := next(stream, None)) is not None:
        given.append(batch.tree[0])
    assert given == [0, 1, 2]


@pytest.mark.parametrize("make", [list, iter, lambda batches: (batch for batch in batches)])
def test_a_last_step_that_some_replicas_have_no_batch_for(make: Any) -> None:
    strategy = jd.MirroredStrategy(2)
    for batches in ([np.zeros(3), np.ones(3), np.full(2, 2.0)], [np.arange(3.0)]):
        data = strategy.distribute_datasets_from_function(lambda _, batches=batches: make(batches))
        steps = [[part.tolist() for part in step.values] for step in data]
        assert steps == [
            [a.tolist(), b.tolist()] for a, b in zip(batches[::2], [*batches[1::2], np.zeros(0)], strict=True)
        ]


def test_batches_do_not_share_memory_with_their_producer() -> None:
    buffer = np.zeros(1_000)
    stream = adapt(buffer for _ in range(2)).open(Shard())
    assert not np.shares_memory(next(stream).tree, buffer)
