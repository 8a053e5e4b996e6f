"""Distributed iterators inside compiled functions: several steps a call, to the last batch."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
import logging
from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.core.execution.feeds import Drawn, Draws, Feed
from jaxtribute.errors import OutOfRangeError, TraceError


def batches(count: int, size: int = 8, last: int | None = None) -> list[np.ndarray[Any, Any]]:
    """`count` batches of consecutive numbers, the last one of `last` elements."""
    sizes = [size] * count if last is None else [*[size] * (count - 1), last]
    ends = np.cumsum(sizes)
    return [np.arange(end - n, end, dtype=np.float32) for n, end in zip(sizes, ends, strict=True)]


def strategies() -> list[jd.Strategy]:
    return [jd.OneDeviceStrategy("cpu:1"), jd.MirroredStrategy([f"cpu:{i}" for i in range(4)])]


class Summing:
    """A step function that adds up what it sees, and counts its steps."""

    def __init__(self, strategy: jd.Strategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.total = jd.Variable(0.0)
            self.steps = jd.Variable(jnp.int32(0))
        self.function = jd.function(self.run)

    def run(self, iterator: Any, count: int) -> Any:
        for _ in range(count):
            self.step(next(iterator))
        return self.total.read_value()

    def step(self, batch: Any) -> None:
        values = self.strategy.run(lambda x: x * jnp.float32(2), (batch,))
        self.total.assign_add(self.strategy.reduce("SUM", values, axis=0))
        self.steps.assign_add(jnp.int32(1))


@pytest.mark.parametrize("strategy", strategies(), ids=repr)
def test_several_steps_a_call_end_exactly_with_the_data(strategy: jd.Strategy) -> None:
    data = batches(6, last=5)
    dataset = strategy.experimental_distribute_dataset(data)
    summing = Summing(strategy)
    for epoch in (1, 2, 3):
        iterator = iter(dataset)
        summing.function(iterator, 4)
        with pytest.raises(StopIteration):
            summing.function(iterator, 4)
        assert summing.steps.numpy() == 6 * epoch
        assert summing.total.numpy() == 2 * epoch * sum(batch.sum() for batch in data)
    # One program for four full batches, one for the rest and the end; later epochs trace nothing.
    assert summing.function.experimental_get_tracing_count() == 2


def test_a_loop_that_ends_by_itself_returns_its_result() -> None:
    strategy = strategies()[1]
    data = batches(5, last=3)
    summing = Summing(strategy)

    @jd.function
    def some(iterator: Any) -> Any:
        count = 0
        for batch in itertools.islice(iterator, 3):
            summing.step(batch)
            count += 1
        return summing.total.read_value(), count

    iterator = iter(strategy.experimental_distribute_dataset(data))
    counts = [int(some(iterator)[1]) for _ in range(3)]
    assert counts == [3, 2, 0]
    assert summing.total.numpy() == 2 * sum(batch.sum() for batch in data)


def test_the_position_counts_what_the_calls_used() -> None:
    strategy = strategies()[1]
    dataset = strategy.experimental_distribute_dataset(batches(7))
    summing = Summing(strategy)
    iterator = iter(dataset)
    summing.function(iterator, 3)
    state = iterator.get_state()
    summing.function(iterator, 3)
    resumed = iter(dataset)
    resumed.set_state(state)
    first = np.concatenate([np.asarray(part) for part in next(resumed).values])
    np.testing.assert_array_equal(first, batches(7)[3])
    resumed.close()
    iterator.close()


def test_a_step_that_raises_hands_its_batches_back() -> None:
    strategy = strategies()[1]
    iterator = iter(strategy.experimental_distribute_dataset(batches(4)))

    @jd.function
    def broken(iterator: Any) -> None:
        next(iterator)
        next(iterator)
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        broken(iterator)
    np.testing.assert_array_equal(np.asarray(next(iterator).values[0]), batches(4)[0][:2])
    iterator.close()


def test_two_iterators_feed_one_function_in_any_order() -> None:
    strategy = strategies()[0]
    left = iter(strategy.experimental_distribute_dataset(batches(3)))
    right = iter(strategy.experimental_distribute_dataset([batch + 100 for batch in batches(4, size=2)]))

    @jd.function
    def both(left: Any, right: Any, swapped: bool) -> Any:
        if swapped:
            return next(right)[0], next(left)[0]
        return next(left)[0], next(right)[0]

    assert [float(x) for x in both(left, right, False)] == [0, 100]
    assert [float(x) for x in both(left, right, True)] == [102, 8]
    assert [float(x) for x in both(left, right, False)] == [16, 104]
    with pytest.raises(StopIteration):
        both(left, right, False)
    assert float(next(right)[0]) == 106  # the left one ended first; nothing of the right one is lost
    right.close()


def test_get_next_ends_with_an_error_of_its_own() -> None:
    strategy = strategies()[0]
    iterator = iter(strategy.experimental_distribute_dataset(batches(1)))

    @jd.function
    def two(iterator: Any) -> Any:
        return iterator.get_next()[0] + iterator.get_next()[0]

    with pytest.raises(OutOfRangeError, match="after 1 batches"):
        two(iterator)
    # As with `next`: what came before the end has been read.
    assert not iterator.get_next_as_optional().has_value()
    iterator.close()


def test_an_iterator_that_was_not_passed_is_an_error() -> None:
    strategy = strategies()[0]
    iterator = iter(strategy.experimental_distribute_dataset(batches(2)))
    with pytest.raises(TraceError, match=r"pass batches, or iter\(dataset\), to it"):
        jd.function(lambda: next(iterator))()
    iterator.close()


def test_a_replica_function_must_not_draw() -> None:
    strategy = strategies()[1]
    iterator = iter(strategy.experimental_distribute_dataset(batches(2)))

    @jd.function
    def step(iterator: Any) -> Any:
        return strategy.run(lambda: next(iterator))

    with pytest.raises(TraceError, match="inside a replica function"):
        step(iterator)
    iterator.close()


def test_uneven_batches_that_cannot_be_compiled_run_as_python(caplog: pytest.LogCaptureFixture) -> None:
    strategy = strategies()[1]
    data = batches(2, last=5)

    def replica(x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            context = jd.get_replica_context()
            assert context is not None
            return carry + context.all_reduce("SUM", x.sum()), None

        return jax.lax.scan(body, jnp.float32(0), None, length=2)[0]

    @jd.function
    def two(iterator: Any) -> Any:
        results = [strategy.run(replica, (next(iterator),)) for _ in range(2)]
        return [strategy.reduce("MEAN", result, axis=None) for result in results]

    with caplog.at_level(logging.WARNING):
        iterator = iter(strategy.experimental_distribute_dataset(data))
        try:
            first, second = two(iterator)
        finally:
            iterator.close()
    assert "runs uncompiled" in caplog.text
    np.testing.assert_allclose([float(first), float(second)], [2 * batch.sum() for batch in data])


@pytest.mark.parametrize("fed", [True, False])
def test_it_is_said_once_that_a_function_runs_uncompiled(fed: bool, caplog: pytest.LogCaptureFixture) -> None:
    strategy = strategies()[1]
    data = [np.arange(rows, dtype=np.float32) for rows in (3, 5, 3, 7, 5)]

    def replica(x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            context = jd.get_replica_context()
            assert context is not None
            return carry + context.all_reduce("SUM", x.sum()), None

        return jax.lax.scan(body, jnp.float32(0), None, length=2)[0]

    @jd.function
    def step(given: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica, (next(given) if fed else given,)), axis=None)

    with closing(iter(strategy.experimental_distribute_dataset(data))) as iterator:
        found = [float(step(iterator if fed else next(iterator))) for _ in data]
    assert found == [2 * batch.sum() for batch in data]
    assert [record.message.count("step runs uncompiled") for record in caplog.records] == [1]


class Listed(Feed):
    """Draws from a list."""

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def draw(self) -> Drawn:
        if not self.items:
            raise StopIteration
        return Drawn(self.items.pop(0), None, None)

    def hand_back(self, batches: Any) -> None:
        self.items[:0] = [drawn.batch for drawn in batches]


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    expected=st.lists(st.integers(0, 2), max_size=8),
    asked=st.lists(st.integers(0, 2), max_size=8),
)
def test_whatever_was_expected_each_iterator_is_used_in_order(
    sizes: list[int], expected: list[int], asked: list[int]
) -> None:
    feeds = [Listed([100 * place + i for i in range(size)]) for place, size in enumerate(sizes)]
    draws = Draws(feeds)
    draws.prefetch([place % len(sizes) for place in expected])
    model = [[100 * place + i for i in range(size)] for place, size in enumerate(sizes)]
    for place in (place % len(sizes) for place in asked):
        if model[place]:
            assert draws.take(place) == model[place].pop(0)
        else:
            with pytest.raises(StopIteration):
                draws.take(place)
    draws.hand_back(draws.used)
    assert [feed.items for feed in feeds] == model


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 8, 9, 12])
def test_optionals_tell_the_end_of_the_data(rows: int) -> None:
    """A loop of up to 3 batches of 4 rows, as often as there are data: each row once, and the last batch smaller."""
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    data = np.arange(rows, dtype=np.float32)
    iterator = iter(strategy.experimental_distribute_dataset([data[at : at + 4] for at in range(0, rows, 4)]))

    @jd.function
    def loop(iterator: Any) -> Any:
        total, count = jnp.zeros(()), 0
        for _ in range(3):
            found = iterator.get_next_as_optional()
            if not found.has_value():
                break
            total += strategy.reduce("SUM", strategy.run(jnp.asarray, (found.get_value(),)), axis=0)
            count += 1
        return total, count

    counts = []
    total = 0.0
    while not counts or counts[-1]:
        part, count = loop(iterator)
        total += float(part)
        counts.append(int(count))
    batches = -(-rows // 4)
    assert counts == [*[3] * (batches // 3), *[batches % 3] * (batches % 3 > 0), 0]
    assert total == data.sum()
    assert int(loop(iterator)[1]) == 0


def test_an_optional_of_an_iterator_that_was_not_passed_is_an_error() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    iterator = iter(strategy.experimental_distribute_dataset([np.zeros(4, np.float32)]))
    with pytest.raises(TraceError, match=r"HINT: loop outside, and pass batches, or iter\(dataset\), to it"):
        jd.function(lambda: iterator.get_next_as_optional().get_value())()
