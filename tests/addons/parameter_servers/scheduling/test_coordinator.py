"""Scheduling: results, errors, input of each worker, what travels and what does not."""

import functools
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.parameter_servers.scheduling import coordinator as coordinator_module
from jaxtribute.errors import (
    ArgumentError,
    ArgumentTypeError,
    CancelledError,
    ClusterError,
    OutOfRangeError,
    VariableError,
)
from parameter_servers import clusters
from parameter_servers.clusters import coordinated


class Point(NamedTuple):
    x: int
    y: Any


@pytest.fixture(scope="module")
def coordinator() -> Any:
    with coordinated(workers=2) as made:
        yield made


def test_results_come_back_as_they_were(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    for value in [3, 2.5, "text", None, True, b"x", (1, [2, {"k": (3,)}]), {"a": None}]:
        assert coordinator.schedule(lambda x: x, args=(value,)).fetch() == value
    array = coordinator.schedule(lambda x: x * 2, args=(np.arange(3000, dtype=np.float32),))
    np.testing.assert_array_equal(array.fetch(), 2 * np.arange(3000))
    assert isinstance(array.get(), jnp.ndarray)
    point = coordinator.schedule(lambda: Point(1, np.ones(2))).fetch()
    assert type(point).__name__ == "Point"
    np.testing.assert_array_equal(point.y, [1, 1])
    assert coordinator.schedule(lambda: 2**80).fetch() == 2**80


def test_arguments_by_name_and_nests_of_results(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    values = [coordinator.schedule(lambda a, *, b: a - b, args=[i], kwargs={"b": 1}) for i in range(3)]
    coordinator.join()
    assert coordinator.done()
    assert coordinator.fetch({"all": values, "plain": 5}) == {"all": [-1, 0, 1], "plain": 5}
    assert "ready" in repr(values[0])
    assert coordinator.schedule(lambda x: x + 1, args=(values[2],)).fetch() == 2  # a result as an argument


def test_a_strategy_has_one_coordinator(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    strategy = coordinator.strategy
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(jd.coordinator.ClusterCoordinator, [strategy] * 8))
    assert all(one is coordinator for one in found)
    assert jd.coordinator.ClusterCoordinator(strategy, max_attempts=3) is coordinator
    with pytest.raises(ArgumentError, match=r"max_attempts is 5, .* was made with 3.*HINT"):
        jd.coordinator.ClusterCoordinator(strategy, max_attempts=5)
    values = [one.schedule(lambda i=i: i) for i, one in enumerate(found)]
    assert coordinator.fetch(values) == list(range(8))
    with coordinated() as other:
        assert other is not coordinator
        assert jd.coordinator.ClusterCoordinator(other.strategy) is other


def test_a_strategy_and_its_coordinator_go_together() -> None:
    with coordinated() as made:
        reference = weakref.ref(made)
        strategy = made.strategy
        assert made.schedule(lambda: 1).fetch() == 1
        del made
        assert reference() is None, "the strategy keeps its coordinator, and so itself"
        again = jd.coordinator.ClusterCoordinator(strategy, max_attempts=7)
        assert again.schedule(lambda: 2).fetch() == 2


def test_arguments_are_of_the_library_that_they_were_of(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    ones = np.ones(3, np.float32)

    def kinds(*args: Any, **kwargs: Any) -> list[str]:
        leaves = jax.tree.leaves((args, kwargs))
        return ["jax" if isinstance(leaf, jax.Array) else type(leaf).__name__ for leaf in leaves]

    args = (jnp.ones(3), ones, np.float32(2), 2.0, [{"x": jnp.zeros((0, 2), jnp.bfloat16)}])
    assert coordinator.schedule(kinds, args, {"y": jnp.int8(1)}).fetch() == [
        "jax", "ndarray", "float32", "float", "jax", "jax",
    ]  # fmt: skip
    assert coordinator.schedule(lambda x: x.at[0].set(5).tolist(), (jnp.ones(3),)).fetch() == [5, 1, 1]
    assert coordinator.schedule(lambda key: jax.random.normal(key).shape, (jax.random.key(0),)).fetch() == ()
    assert coordinator.schedule(lambda i: {i: 1}, (np.int64(3),)).fetch() == {3: 1}, "a key of a dictionary"
    result = coordinator.schedule(lambda x: x, (jnp.ones(3),))
    assert type(result.fetch()) is np.ndarray
    assert isinstance(result.get(), jax.Array)
    remote = coordinator.schedule(lambda x: isinstance(x, np.ndarray), (result,))
    assert remote.fetch(), "a result as an argument"


def test_an_argument_may_change_once_schedule_has_returned(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    array = np.zeros(4)
    result = coordinator.schedule(np.sum, args=(array,))
    array[:] = 1
    assert result.fetch() == 0


def test_closures_run_on_all_workers(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    barrier = threading.Barrier(2, timeout=20)

    def meet() -> Any:
        clusters.SHARED["barrier"].wait()
        return jd.coordinator.experimental_get_current_worker_index()

    clusters.SHARED["barrier"] = barrier
    found = [coordinator.schedule(meet) for _ in range(2)]
    assert sorted(coordinator.fetch(found)) == [0, 1]
    assert jd.coordinator.experimental_get_current_worker_index() is None


def fail() -> None:
    raise KeyError("a batch")


def test_the_first_error_surfaces_once_and_cancels_what_has_not_started(
    coordinator: jd.coordinator.ClusterCoordinator,
) -> None:
    bad = coordinator.schedule(fail)
    with pytest.raises(KeyError, match="a batch") as caught:
        coordinator.join()
    assert "raised on worker" in caught.value.__notes__[0]
    assert "in fail" in caught.value.__notes__[0]
    with pytest.raises(KeyError):
        bad.fetch()
    coordinator.join()
    assert coordinator.schedule(lambda: 1).fetch() == 1, "the coordinator cannot be used again"
    clusters.SHARED["scheduled"] = threading.Event()
    with coordinated() as single:
        results = [single.schedule(f) for f in [fail_later, *[slow] * 5]]
        clusters.SHARED["scheduled"].set()
        with pytest.raises(KeyError):
            schedule_for_ever(single)
        with pytest.raises(CancelledError, match="as another"):
            single.fetch(results[1:])


def schedule_for_ever(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    while True:
        coordinator.schedule(lambda: 0)


def fail_later() -> None:
    """Fails once the others are scheduled: later calls of `schedule` would raise."""
    clusters.SHARED["scheduled"].wait(20)
    fail()


def slow() -> None:
    threading.Event().wait(0.02)


class Unpicklable(Exception):  # noqa: N818
    def __init__(self) -> None:
        super().__init__("odd")
        self.lock = threading.Lock()


def test_an_error_that_cannot_travel_is_told_in_words(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    def fail() -> None:
        raise Unpicklable

    with pytest.raises(ClusterError, match="Unpicklable: odd"):
        coordinator.schedule(fail).fetch()
    with pytest.raises(ClusterError):
        coordinator.join()


def test_what_cannot_be_scheduled_says_why(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    lock, outside = threading.Lock(), jd.Variable(1.0, name="outside")
    with pytest.raises(ArgumentTypeError, match="HINT: pass a function"):
        coordinator.schedule(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match=r"cannot be sent to workers: TypeError: cannot pickle '_thread\.lock'"):
        coordinator.schedule(lambda: lock)
    with pytest.raises(ArgumentTypeError, match="outside:0 was not made in the strategy's scope"):
        coordinator.schedule(lambda: outside + 1)
    result = coordinator.schedule(lambda: 1)
    with pytest.raises(ArgumentTypeError, match="HINT: pass its value"):
        coordinator.schedule(lambda: result.fetch() + 1)
    with pytest.raises(ArgumentTypeError, match=r"HINT: pass a jd\.ParameterServerStrategy"):
        jd.coordinator.ClusterCoordinator(jd.get_strategy())
    coordinator.join()


def test_variables_are_made_on_the_coordinator(coordinator: jd.coordinator.ClusterCoordinator) -> None:
    with pytest.raises(VariableError, match="created in a function that runs on a worker"):
        coordinator.schedule(lambda: jd.Variable(1.0)).fetch()
    with pytest.raises(VariableError):
        coordinator.join()


def test_each_worker_has_a_dataset_of_its_own() -> None:
    with coordinated() as coordinator:
        strategy = coordinator.strategy

        def dataset() -> Any:
            rows = np.arange(6, dtype=np.float32)
            return strategy.experimental_make_numpy_dataset(rows).batch(2)

        @jd.function
        def step(iterator: Any) -> Any:
            return strategy.run(lambda x: x.sum(), args=(next(iterator),))

        dataset_of_workers = coordinator.create_per_worker_dataset(dataset)
        iterator = iter(dataset_of_workers)
        assert [float(coordinator.schedule(step, args=(iterator,)).fetch()) for _ in range(3)] == [1, 5, 9]
        again = iter(coordinator.create_per_worker_dataset(jd.function(dataset)))
        assert float(coordinator.schedule(lambda it: next(it).sum(), args=(again,)).fetch()) == 1
        assert dataset_of_workers.element_spec.dtype == np.float32
        coordinator.schedule(step, args=(iterator,))
        with pytest.raises(OutOfRangeError, match="data of this worker has ended"):
            coordinator.join()
        with pytest.raises(ArgumentTypeError, match="HINT: pass the iterator"):
            next(iterator)
        with pytest.raises(ArgumentTypeError, match="function without arguments"):
            coordinator.create_per_worker_dataset(3)  # pyright: ignore[reportArgumentType]


def test_a_coordinator_without_workers_says_so() -> None:
    with coordinated() as coordinator:
        coordinator.schedule(lambda: 1).fetch()
        queue = coordinator._queue  # pyright: ignore[reportPrivateUsage]
        with queue.changed:
            for worker in queue.workers.values():
                worker.route = None
            queue.absent_since, queue.patience_s = 0.0, 0.1
        coordinator.schedule(lambda: 1)
        with pytest.raises(ClusterError, match="none of the workers 0 has been there"):
            coordinator.join()
        waiting = coordinator.schedule(lambda: 1)
        with pytest.raises(ClusterError, match="none of the workers 0 has been there"):
            waiting.fetch()


def test_functions_that_were_not_scheduled_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "_DEFINITIONS", 2)
    with coordinated() as coordinator:
        functions = [lambda i=i: i for i in range(5)]
        for _ in range(2):
            assert coordinator.fetch([coordinator.schedule(function) for function in functions]) == [0, 1, 2, 3, 4]
        task = clusters.engine_of(coordinator).task("worker", 0)
        deadline = time.monotonic() + 20
        while len(task._calls) > 3:  # it is told in its own time
            assert time.monotonic() < deadline, task._calls
            threading.Event().wait(0.01)


def test_a_function_that_closes_over_the_coordinator_sees_its_strategy(coordinator: Any) -> None:
    def is_the_strategy() -> Any:
        return coordinator.strategy is jd.get_strategy(), coordinator.strategy.num_replicas_in_sync

    assert coordinator.schedule(is_the_strategy).fetch() == (True, 1)
    with pytest.raises(ArgumentTypeError, match=r"coordinator\.schedule was asked for on a worker\. HINT"):
        coordinator.schedule(lambda: coordinator.schedule(is_the_strategy)).fetch()
    with pytest.raises(ArgumentTypeError, match="on a worker"):
        coordinator.join()


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_settings_of_jax_hold_on_workers_and_servers(compiled: bool) -> None:
    """They are set for this thread alone, as `jax.config.update` in a program is for its process alone."""
    with coordinated() as coordinator:
        told = lambda: (jax.config.jax_default_matmul_precision, str(jnp.ones(1).dtype))  # noqa: E731
        with jax.enable_x64(True), jax.default_matmul_precision("float32"):
            with coordinator.strategy.scope():
                seen = jd.Variable(2**40)
                w = jd.Variable(functools.partial(_thirds, shape=(2, 1)), dtype=np.float64)
                optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [w])

            def step() -> Any:
                seen.assign_add(2**41 + 1)
                gradient = w.read_value() * 3
                optimizer.apply_gradients([gradient])
                return gradient / 7

            value = coordinator.schedule(jd.function(step) if compiled else step).fetch()
            assert int(seen.numpy()) == 2**40 + 2**41 + 1
            np.testing.assert_allclose(w.numpy(), np.full((2, 1), np.float64(1) / 3 - 0.1), rtol=1e-15)
            np.testing.assert_allclose(value, np.full((2, 1), np.float64(1) / 7), rtol=1e-15)
            assert coordinator.schedule(told).fetch() == ("float32", "float64")
        assert coordinator.schedule(told).fetch() == (None, "float32")


def _thirds(shape: tuple[int, ...], shard_info: Any) -> Any:
    return jnp.ones(shape, float) / 3
