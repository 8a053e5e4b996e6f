"""Values and datasets that each worker makes for itself: what they may be, when they are made, when they go."""

import gc
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.coordinator import PerWorkerValues, experimental_get_current_worker_index
from jaxtribute.errors import ArgumentTypeError, ClusterError, OutOfRangeError
from parameter_servers import clusters
from parameter_servers.clusters import coordinated, engine_of

WORKERS = 2


@pytest.fixture
def cluster() -> Generator[Any]:
    with coordinated(workers=WORKERS) as made:
        yield made


def on_each(coordinator: Any, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What a function gives on each worker, in their order."""
    clusters.SHARED["barrier"] = threading.Barrier(WORKERS, timeout=20)

    def meet(*given: Any) -> Any:
        clusters.SHARED["barrier"].wait()  # so that no worker takes two
        return experimental_get_current_worker_index(), function(*given)

    pairs = coordinator.fetch([coordinator.schedule(meet, args) for _ in range(WORKERS)])
    assert sorted(index for index, _ in pairs) == list(range(WORKERS))
    return [value for _, value in sorted(pairs, key=lambda pair: pair[0])]


def batches(strategy: Any) -> Any:
    return strategy.experimental_make_numpy_dataset(np.arange(1, 11)).batch(4)


def test_datasets_as_they_may_be_given(cluster: Any) -> None:
    strategy = cluster.strategy
    given: dict[str, Any] = {
        "function": lambda: batches(strategy),
        "compiled function": jd.function(lambda: batches(strategy)),
        "function of a distributed dataset": lambda: strategy.experimental_distribute_dataset(batches(strategy)),
        "function of one from a function": lambda: strategy.distribute_datasets_from_function(
            lambda context: batches(strategy) if context.num_input_pipelines == 1 else []
        ),
        "dataset": batches(strategy),
        "distributed dataset": strategy.experimental_distribute_dataset(batches(strategy)),
        "distributed from a function": strategy.distribute_datasets_from_function(lambda _: batches(strategy)),
        "list": [np.arange(1, 5), np.arange(5, 9), np.arange(9, 11)],
    }
    step = jd.function(lambda iterator: strategy.experimental_local_results(next(iterator)))
    whole = jd.function(lambda iterator: sum(batch.sum() for batch in iterator))
    for name, dataset in given.items():
        made = cluster.create_per_worker_dataset(dataset)
        (first,) = cluster.schedule(step, (iter(made),)).fetch()
        np.testing.assert_array_equal(first, [1, 2, 3, 4], err_msg=name)
        assert int(cluster.schedule(whole, (iter(made),)).fetch()) == 55, name
        # The dataset itself is an argument, too.
        assert int(cluster.schedule(lambda data: sum(int(batch.sum()) for batch in data), (made,)).fetch()) == 55, name
        assert made.element_spec == iter(made).element_spec, name


def test_each_worker_has_its_own_position_and_may_have_its_own_part(cluster: Any) -> None:
    def part() -> Any:
        index = experimental_get_current_worker_index()
        return [np.asarray(i) for i in range(10) if i % WORKERS == index]

    iterator = iter(cluster.create_per_worker_dataset(part))
    assert [[int(x) for x in xs] for xs in on_each(cluster, lambda it: [next(it), next(it)], iterator)] == [
        [0, 2],
        [1, 3],
    ]
    assert on_each(cluster, lambda it: int(sum(it)), iterator) == [4 + 6 + 8, 5 + 7 + 9]
    again = iter(cluster.create_per_worker_dataset(part))
    assert on_each(cluster, lambda it: int(sum(it)), again) == [20, 25]


def test_several_datasets_in_one_function(cluster: Any) -> None:
    low, high = (cluster.create_per_worker_dataset([np.asarray(i) for i in r]) for r in (range(5), range(5, 10)))
    add = jd.function(lambda a, b: next(a) + next(b))
    first = iter(low)
    assert int(cluster.schedule(add, (first, iter(high))).fetch()) == 5
    nested = cluster.schedule(
        lambda both: int(next(both["a"][0])) + int(next(both["b"])), ({"a": [iter(low)], "b": iter(high)},)
    )
    assert nested.fetch() == 5


def test_values_are_made_once_on_each_worker(cluster: Any) -> None:
    made: Iterator[int] = itertools.count()
    clusters.SHARED["made"] = made
    value = PerWorkerValues(lambda: [next(clusters.SHARED["made"])])
    other = PerWorkerValues(lambda: [next(clusters.SHARED["made"])])
    cluster.schedule(lambda: None).fetch()
    assert next(made) == 0, "made before it is used"
    first = on_each(cluster, lambda mine: mine.append(0) or mine[0], value)
    assert sorted(first) == [1, 2]
    assert on_each(cluster, lambda mine: (mine[0], len(mine)), value) == [(index, 2) for index in first]
    assert next(made) == 3, "made where nobody asked"
    del other


def test_variables_of_a_worker(cluster: Any) -> None:
    """Plain variables, that servers know nothing of; each worker counts for itself."""
    counter = PerWorkerValues(lambda: jd.Variable(0.0, name="count"))
    count = jd.function(lambda mine: mine.assign_add(1.0).read_value())
    for _ in range(10):
        cluster.schedule(lambda mine: float(count(mine)), (counter,))
    cluster.join()
    assert sum(on_each(cluster, lambda mine: float(mine.numpy()), counter)) == 10


def test_an_error_in_making_one_is_the_error_of_each_function_that_takes_it(cluster: Any) -> None:
    def fail() -> Any:
        raise KeyError("no such file")

    def stop() -> Any:
        raise StopIteration("of mine")

    for make, kind, words in ((fail, KeyError, "no such file"), (stop, ClusterError, "StopIteration: of mine")):
        for bad in (PerWorkerValues(make), iter(cluster.create_per_worker_dataset(make))):
            for _ in range(2):
                with pytest.raises(kind, match=words):
                    cluster.schedule(lambda mine: mine, (bad,)).fetch()
                with pytest.raises(kind, match=words):
                    cluster.join()
    bad = PerWorkerValues(fail)
    assert cluster.schedule(lambda: 1).fetch() == 1, "one that no function takes does no harm"
    with pytest.raises(ArgumentTypeError, match="cannot be distributed"):
        cluster.schedule(next, (iter(cluster.create_per_worker_dataset(lambda: 3)),)).fetch()
    with pytest.raises(ArgumentTypeError):
        cluster.join()
    del bad


def test_an_iterator_goes_on_after_an_error_of_another_function(cluster: Any) -> None:
    strategy = cluster.strategy
    iterator = iter(cluster.create_per_worker_dataset([np.asarray(i) for i in range(3)] * 4))
    step = jd.function(lambda it: strategy.run(lambda x: x + 0, (next(it),)))
    seen = [int(cluster.schedule(step, (iterator,)).fetch())]
    cluster.schedule(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cluster.join()
    seen += [int(cluster.schedule(step, (iterator,)).fetch()) for _ in range(3)]
    assert set(seen) <= {0, 1, 2}
    assert len(seen) == 4


def resources(coordinator: Any) -> list[int]:
    return [len(engine_of(coordinator).task("worker", i)._home.resources) for i in range(WORKERS)]


def test_iterators_of_past_epochs_are_dropped_by_the_workers() -> None:
    """With what they hold: the data, and a thread that prefetches."""
    with coordinated(workers=WORKERS) as coordinator:
        strategy = coordinator.strategy
        dataset = coordinator.create_per_worker_dataset(lambda: batches(strategy).repeat())
        step = jd.function(lambda it: next(it).sum())
        before = threading.active_count()
        iterator = None
        for _ in range(6):
            iterator = iter(dataset)
            results = [coordinator.schedule(step, (iterator,)) for _ in range(8)]
            coordinator.join()
            assert {int(result.fetch()) for result in results} <= {10, 26, 19}
        del iterator
        gc.collect()
        deadline = time.monotonic() + 20
        while sum(resources(coordinator)) or threading.active_count() > before:
            assert time.monotonic() < deadline, (resources(coordinator), threading.enumerate())
            coordinator.schedule(lambda: None).fetch()
        # One that is dropped right after it was passed is there until the function has run.
        for _ in range(3):
            coordinator.schedule(step, (iter(dataset),))
        coordinator.join()


def test_an_iterator_that_is_dropped_while_functions_wait_for_it_is_one_iterator() -> None:
    with coordinated(workers=1) as coordinator:
        gate = clusters.SHARED["gate"] = threading.Event()
        iterator = iter(coordinator.create_per_worker_dataset([np.asarray(i) for i in range(4)]))
        coordinator.schedule(lambda: clusters.SHARED["gate"].wait(20))
        one, other = (lambda it: (0, int(next(it)))), (lambda it: (1, int(next(it))))
        results = [coordinator.schedule(function, (iterator,)) for function in (one, other, one)]
        del iterator
        gc.collect()
        results.append(coordinator.schedule(lambda: None))  # which notices that nobody has it any more
        gate.set()
        assert coordinator.fetch(results) == [(0, 0), (1, 1), (0, 2), None]


def test_the_end_of_the_data_and_other_ends(cluster: Any) -> None:
    """An iterator's end is told as such; a StopIteration of the user's own as what it is."""
    strategy = cluster.strategy

    def own() -> None:
        raise StopIteration("mine")

    def bare() -> Any:
        return next(iter(()))

    def inside(iterator: Any) -> Any:
        next(iterator)
        return next(iter(()))

    def through(iterator: Any) -> Any:
        return [next(zip(iterator, itertools.count(), strict=False)) for _ in range(9)]

    def short() -> Any:
        return iter(cluster.create_per_worker_dataset([np.ones(2), np.ones(2)]))

    ends = (
        (lambda it: [next(it) for _ in range(9)], OutOfRangeError, "data of this worker has ended"),
        (jd.function(lambda it: [next(it).sum() for _ in range(9)]), OutOfRangeError, "data of this worker has ended"),
        (through, OutOfRangeError, "data of this worker has ended"),
        (lambda it: [it.get_next() for _ in range(9)], OutOfRangeError, "end of the data after"),
        (inside, ClusterError, "has raised StopIteration, which"),
        (jd.function(inside), ClusterError, "has raised StopIteration, which"),
        (jd.function(lambda it: strategy.run(inside, (it,))), ClusterError, "has raised StopIteration, which"),
    )
    for function, kind, words in ends:
        with pytest.raises(kind, match=rf"{words}[\s\S]*HINT"):
            cluster.schedule(function, (short(),)).fetch()
        with pytest.raises(kind):
            cluster.join()
    for function, words in ((own, "StopIteration: mine"), (bare, "StopIteration, which"), (jd.function(own), ": mine")):
        with pytest.raises(RuntimeError, match=rf"the scheduled function has raised .*{words}[\s\S]*HINT") as caught:
            list(map(cluster.fetch, [cluster.schedule(function)]))  # a StopIteration would end `map` with an empty list
        assert "raised on worker" in caught.value.__notes__[0]
        with pytest.raises(ClusterError):
            cluster.join()
    assert cluster.schedule(lambda: jnp.ones(2)).fetch().sum() == 2
