"""Each pass over a distributed dataset has an order of its own if the dataset shuffles, as epochs under `repeat`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import grain
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.compat import tf
from replicas import mirrored, one_device

EXAMPLES, BATCH = 23, 5  # the last batch is a short one
Make = Callable[[], Any]


def numbers() -> grain.MapDataset[Any]:
    return jd.get_strategy().experimental_make_numpy_dataset(np.arange(EXAMPLES))  # pyright: ignore[reportReturnType]


def rows() -> grain.MapDataset[Any]:
    return numbers().shuffle(seed=3)


def twice(row: Any) -> Any:
    return row * 2


def generated() -> Any:
    """A stream, which nobody can ask for an element by number."""
    return tf.data.Dataset.from_generator(lambda: iter(np.arange(EXAMPLES)), output_types=np.int32).shuffle(23, seed=3)


SHUFFLED: dict[str, Make] = {
    "read by index": lambda: rows().batch(BATCH),
    "read by threads": lambda: rows().map(twice).batch(BATCH),
    "shuffled twice": lambda: rows()[2:].shuffle(seed=4).batch(BATCH),
    "batches in turn": lambda: numbers().batch(BATCH).shuffle(seed=2),
    "repeated": lambda: rows().repeat(2).batch(BATCH),
    "tf": lambda: tf.data.Dataset.range(EXAMPLES).shuffle(23, seed=3).batch(BATCH),
    "tf, repeated": lambda: tf.data.Dataset.range(EXAMPLES).shuffle(23, seed=3).repeat(2).batch(BATCH),
    "tf, a stream": lambda: generated().batch(BATCH),
    "tf, a stream repeated": lambda: generated().repeat(2).batch(BATCH),
}
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "default": jd.get_strategy,
    "one": lambda: one_device(1),
    "four": lambda: mirrored(4),
}


def read(strategy: jd.Strategy, elements: Iterable[Any]) -> list[int]:
    """The examples of a pass, in their order."""
    found: list[int] = []
    for element in elements:
        for part in strategy.experimental_local_results(element):
            found += np.asarray(part).tolist()
    return found


def by_grain(dataset: grain.MapDataset[Any], epoch: int) -> list[int]:
    """What plain Grain gives in an epoch of the dataset repeated for ever."""
    first = epoch * len(dataset)
    return np.concatenate([np.atleast_1d(dataset[first + index]) for index in range(len(dataset))]).tolist()


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("kind", SHUFFLED)
def test_passes_differ_and_each_has_every_example(name: str, kind: str) -> None:
    strategy = STRATEGIES[name]()
    distributed = strategy.experimental_distribute_dataset(SHUFFLED[kind]())
    passes = [read(strategy, distributed) for _ in range(3)]
    assert len(set(map(tuple, passes))) == 3
    assert len({tuple(sorted(each)) for each in passes}) == (3 if kind == "shuffled twice" else 1)
    plain = SHUFFLED[kind]()
    if isinstance(plain, grain.MapDataset):
        assert passes == [by_grain(plain, epoch) for epoch in range(3)]


@pytest.mark.parametrize("kind", SHUFFLED)
def test_a_position_leads_back_into_its_pass(kind: str) -> None:
    strategy = mirrored(2)
    distributed = strategy.experimental_distribute_dataset(SHUFFLED[kind]())
    read(strategy, distributed)
    second = iter(distributed)
    next(second)
    state = second.get_state()
    rest, third = read(strategy, second), read(strategy, distributed)
    # In another process, and on another number of replicas.
    strategy = mirrored(4)
    again = strategy.experimental_distribute_dataset(SHUFFLED[kind]())
    iterator = iter(again)
    iterator.set_state(state)
    assert read(strategy, iterator) == rest
    assert read(strategy, again) == third


def test_a_pass_that_a_position_leads_out_of_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = mirrored(2)
    distributed = strategy.experimental_distribute_dataset(SHUFFLED["read by index"]())
    iterator, second = iter(distributed), iter(distributed)
    closed: list[str] = []
    monkeypatch.setattr(iterator._steps, "close", lambda: closed.append("first pass"))
    iterator.set_state(iterator.get_state())
    assert not closed
    iterator.set_state(second.get_state())
    assert closed == ["first pass"]


def test_positions_from_before_lead_into_the_only_order_there_was() -> None:
    strategy = mirrored(2)
    distributed = strategy.experimental_distribute_dataset(SHUFFLED["read by index"]())
    first = iter(distributed)
    next(first)
    state = {key: value for key, value in first.get_state().items() if key != "epoch"}
    rest = read(strategy, first)
    other = iter(distributed)
    other.set_state(state)
    assert read(strategy, other) == rest


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.data.Dataset.range(EXAMPLES).shuffle(23, seed=3, reshuffle_each_iteration=False).batch(BATCH),
        lambda: tf.data.Dataset.range(EXAMPLES).shuffle(23, seed=3).cache().batch(BATCH),
        lambda: rows().repeat(1, reseed_each_epoch=False).batch(BATCH),
        lambda: rows().repeat().batch(BATCH)[:5],
    ],
)
def test_one_order_where_it_is_asked_for(make: Make) -> None:
    strategy = mirrored(4)
    distributed = strategy.experimental_distribute_dataset(make())
    passes = [read(strategy, distributed) for _ in range(3)]
    assert passes[0] == passes[1] == passes[2]


@pytest.mark.parametrize("kind", ["read by index", "tf", "tf, a stream"])
def test_one_order_of_what_reshuffles(kind: str) -> None:
    strategy = mirrored(4)
    distributed = strategy.experimental_distribute_dataset(SHUFFLED[kind]())
    passes = [read(strategy, distributed.in_one_order()) for _ in range(3)]
    assert passes[0] == passes[1] == passes[2]


def test_loops_of_tensorflow_without_a_strategy() -> None:
    dataset = tf.data.Dataset.range(EXAMPLES).shuffle(23, seed=3)
    passes = [[int(element) for element in dataset] for _ in range(3)]
    assert len(set(map(tuple, passes))) == 3
    assert all(sorted(each) == list(range(EXAMPLES)) for each in passes)
    assert [int(element) for element in dataset.take(3).as_numpy_iterator()] == passes[0][:3]
