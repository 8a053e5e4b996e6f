"""`ElasticStrategy` against one device: each island in a thread of this process, which has a context of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.processes import free_ports

import jaxtribute as jd
from jaxtribute._src.addons.elastic.exchange import Islands
from jaxtribute._src.core.observers import Event, Observer, observe
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ClusterError, VariableError
from replicas import another_operation, here

RATE = 0.1


class Job:
    """Islands of one job.

    Args:
      count: how many.
      settings: those of `ElasticStrategy`.
    """

    def __init__(self, count: int, **settings: Any) -> None:
        self.count = count
        self._settings: dict[str, Any] = {"timeout_s": 30.0} | settings
        self._addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]

    def strategy(self, rank: int, incarnation: int = 0) -> jd.experimental.ElasticStrategy:
        resolver = jd.cluster_resolver.SimpleClusterResolver(
            jd.ClusterSpec({"worker": self._addresses}), task_type="worker", task_id=rank
        )
        return jd.experimental.ElasticStrategy(cluster_resolver=resolver, incarnation=incarnation, **self._settings)

    def run(self, body: Callable[[jd.experimental.ElasticStrategy], Any]) -> list[Any]:
        """Calls `body` on each island; all of them leave when all are done."""

        made: list[jd.experimental.ElasticStrategy] = []

        def island(rank: int) -> Any:
            strategy = self.strategy(rank)
            made.append(strategy)
            try:
                return body(strategy)
            except BaseException:
                for each in made:  # the others would wait for this one
                    each.close()
                raise

        try:
            with ThreadPoolExecutor(self.count) as pool:
                return list(pool.map(island, range(self.count)))
        finally:
            for strategy in made:
                strategy.close()


def batches(sizes: list[int]) -> list[tuple[Any, Any]]:
    chance = np.random.default_rng(3)
    made: list[tuple[Any, Any]] = []
    for size in sizes:
        x = chance.normal(size=(size, 4)).astype("float32")
        made.append((x, x @ np.arange(1, 5, dtype="float32")))
    return made


def training(
    strategy: jd.Strategy, data: list[Any], *, compiled: bool, each: Callable[[int], None] | None = None
) -> Any:
    """Trains a linear model with Adam; returns the losses, the number of examples, and the weights."""
    with strategy.scope():
        w = jd.Variable(jnp.zeros(4), name="w")
        seen = jd.Variable(0, aggregation=jd.VariableAggregation.SUM, name="seen")
        optimizer = jd.Optimizer(optax.adam(RATE), [w])

    def replica(x: jax.Array, y: jax.Array, total: jax.Array) -> jax.Array:
        loss, grads = jd.value_and_grad(lambda: jnp.sum((x @ w - y) ** 2) / total, [w])()
        optimizer.apply_gradients(zip(grads, [w], strict=True))
        seen.assign_add(jnp.int32(x.shape[0]))
        return here().all_reduce("SUM", loss)

    @jd.function
    def step(x: Any, y: Any, total: jax.Array) -> jax.Array:
        losses = strategy.run(replica, (x, y, total))
        return strategy.reduce("MEAN", losses, axis=None)

    losses: list[float] = []
    for number, (x, y) in enumerate(strategy.experimental_distribute_dataset(data)):
        if each is not None:
            each(number)
        total = jnp.float32(len(data[number][0]))
        if compiled:
            losses.append(float(step(x, y, total)))
        else:
            losses.append(float(strategy.experimental_local_results(strategy.run(replica, (x, y, total)))[0]))
    return losses, int(seen), np.asarray(w)


def test_islands_that_share_examples_evenly_send_factors_of_large_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes, and so who sends what, follow from the batch alone: one that islands share unevenly is summed whole."""
    chance = np.random.default_rng(0)
    data = [chance.normal(size=(size, 300)).astype("float32") for size in (6, 7)]
    gathered: list[list[tuple[int, ...]]] = []

    def trained(strategy: jd.Strategy) -> np.ndarray[Any, Any]:
        with strategy.scope():
            weights = [jd.Variable(jnp.full(shape, 0.01)) for shape in ((300, 400), (400, 200))]
            optimizer = jd.Optimizer(optax.sgd(RATE), weights)

        def replica(x: jax.Array) -> None:
            loss = lambda: jnp.sum(jnp.einsum("bi,ij->bj", jnp.tanh(x @ weights[0]), weights[1]) ** 2)  # noqa: E731
            optimizer.apply_gradients(jd.grad(loss, weights)())

        step = jd.function(lambda x: strategy.run(replica, (x,)))
        for x in strategy.experimental_distribute_dataset(data):
            step(x)
        return np.concatenate([np.asarray(w).reshape(-1) for w in weights])

    def begin(islands: Islands, arrays: Any, *rest: Any) -> Any:
        gathered.append([array.shape for array in arrays])
        return begins(islands, arrays, *rest)

    begins = Islands.begin_gather
    monkeypatch.setattr(Islands, "begin_gather", begin)
    first, second = Job(2).run(trained)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, trained(jd.OneDeviceStrategy("CPU:0")), rtol=1e-4, atol=1e-6)
    assert {tuple(sorted(shapes)) for shapes in gathered} == {((3, 200), (3, 300), (3, 400), (3, 400))}


def check_equal(results: list[Any], expected: Any) -> None:
    for losses, seen, weights in results:
        np.testing.assert_allclose(losses, expected[0], rtol=1e-5, atol=1e-6)
        assert seen == expected[1]
        np.testing.assert_allclose(weights, expected[2], rtol=1e-5, atol=1e-6)
    for _, _, weights in results[1:]:
        np.testing.assert_array_equal(weights, results[0][2])


SIZES = [8, 8, 5, 1, 8]
"""Batches that islands divide evenly, unevenly, and so that some get no example."""


def alone(data: list[Any]) -> Any:
    return training(jd.OneDeviceStrategy("CPU:0"), data, compiled=True)


@pytest.mark.quick_cases(5, whole=True)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_training_is_that_of_one_device(count: int, compiled: bool) -> None:
    data = batches(SIZES)
    results = Job(count).run(lambda strategy: training(strategy, data, compiled=compiled))
    check_equal(results, alone(data))


class Killed(Exception):  # noqa: N818
    """Stands for the end of a process."""


@pytest.mark.quick_cases(4, whole=True)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("killed", [{0: 2}, {2: 3}, {0: 2, 1: 2}])
def test_what_is_left_trains_on_every_example_once(killed: dict[int, int], compiled: bool) -> None:
    data = batches(SIZES)

    def body(strategy: jd.experimental.ElasticStrategy) -> Any:
        def each(number: int) -> None:
            if killed.get(strategy.island) == number:
                # While the others are within the step: they wait for what never comes.
                time.sleep(0.1)
                strategy.close()
                raise Killed

        try:
            return training(strategy, data, compiled=compiled, each=each)
        except Killed:
            return None

    results = Job(3).run(body)
    left = [result for result in results if result is not None]
    assert len(left) == 3 - len(killed)
    check_equal(left, alone(data))


def in_replicas(count: int, replica: Callable[[], Any], *, compiled: bool = True) -> list[Any]:
    """What each island's replica returns."""

    def body(strategy: jd.experimental.ElasticStrategy) -> Any:
        run = jd.function(lambda: strategy.run(replica)) if compiled else lambda: strategy.run(replica)
        return jax.tree.map(np.asarray, strategy.experimental_local_results(run())[0])

    return Job(count).run(body)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_what_replicas_ask_of_each_other(compiled: bool) -> None:
    def replica() -> Any:
        context = here()
        own = context.replica_id_in_sync_group
        return {
            "sum": context.all_reduce("SUM", own + 1),
            "rows": context.all_reduce("SUM", np.zeros((4, 2)).shape[0]),
            "mean": context.all_reduce("MEAN", own),
            "flags": context.all_reduce("SUM", own > 0),
            "gathered": context.all_gather(jnp.broadcast_to(own, (2, 1)), axis=0),
            "across": context.all_gather(jnp.stack([own, own])[None], axis=1),
            "merged": context.merge_call(lambda strategy, x: strategy.reduce("SUM", x, axis=None), (own + 1,)),
            "gradient": jax.grad(lambda x: context.all_reduce("SUM", x * x))(jnp.float32(own)),
            "count": jnp.int32(context.num_replicas_in_sync),
        }

    results = in_replicas(3, replica, compiled=compiled)
    for rank, result in enumerate(results):
        assert result["sum"] == 6
        assert result["rows"] == 12
        assert result["mean"] == 1.0
        assert result["flags"] == 2
        np.testing.assert_array_equal(result["gathered"][:, 0], [0, 0, 1, 1, 2, 2])
        np.testing.assert_array_equal(result["across"], [[0, 0, 1, 1, 2, 2]])
        assert result["merged"] == 6
        assert result["gradient"] == 3 * 2 * rank
        assert result["count"] == 3


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize(
    ("aggregation", "expected"), [("SUM", 5 + 1 + 2 + 3), ("MEAN", 5 + 2), ("ONLY_FIRST_REPLICA", 5 + 1)]
)
def test_what_islands_write_is_combined(aggregation: str, expected: float, compiled: bool) -> None:
    def body(strategy: jd.experimental.ElasticStrategy) -> float:
        with strategy.scope():
            v = jd.Variable(5.0, aggregation=jd.VariableAggregation[aggregation])

        def replica() -> None:
            v.assign_add(here().replica_id_in_sync_group.astype(jnp.float32) + jnp.float32(1))

        step = jd.function(lambda: strategy.run(replica)) if compiled else lambda: strategy.run(replica)
        step()
        return float(v)

    assert Job(3).run(body) == [expected] * 3


def test_the_first_island_s_initial_values_count() -> None:
    def body(strategy: jd.experimental.ElasticStrategy) -> float:
        with strategy.scope():
            v = jd.Variable(float(strategy.island) + 7)
        return float(v)

    assert Job(2).run(body) == [7.0, 7.0]


def test_means_weigh_islands_by_their_examples() -> None:
    def body(strategy: jd.experimental.ElasticStrategy) -> list[float]:
        (x,) = strategy.experimental_distribute_dataset([np.arange(5, dtype="float32")])
        in_step = strategy.run(lambda x: here().all_reduce("MEAN", x.mean()), (x,))
        outside = strategy.reduce("MEAN", strategy.run(lambda x: x.mean(), (x,)), axis=None)
        along = strategy.reduce("MEAN", strategy.run(lambda x: x, (x,)), axis=0)
        return [float(strategy.experimental_local_results(in_step)[0]), float(outside), float(along)]

    for result in Job(4).run(body):  # 2, 2, 1 and no example
        np.testing.assert_allclose(result, [2.0, 2.0, 2.0])


@pytest.mark.parametrize("x64", [True, False])
def test_means_of_integers_are_of_the_default_float(x64: bool) -> None:
    def body(strategy: jd.Strategy) -> Any:
        with jax.enable_x64(x64):
            return strategy.run(lambda: here().all_reduce("MEAN", jnp.asarray(2**24 + 1))).values[0].dtype  # pyright: ignore[reportAttributeAccessIssue]

    assert Job(2).run(body) == [jnp.float64 if x64 else jnp.float32] * 2


def test_an_operation_that_islands_do_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    op = another_operation(monkeypatch)
    with contextlib.closing(jd.experimental.ElasticStrategy()) as strategy:
        value = strategy.run(lambda: jnp.ones(2))
        for call in (
            lambda: strategy.reduce(op, value, axis=None),
            lambda: strategy.reduce(op, value, axis=0),
            lambda: strategy.reduce(op, jnp.ones(2), axis=None),
            lambda: strategy.run(lambda: here().all_reduce(op, jnp.ones(2))),
        ):
            with pytest.raises(ArgumentError, match=r"not by ReduceOp\.LARGEST"):
                call()


def test_a_value_that_a_dead_island_had_a_part_of_is_refused() -> None:
    def body(strategy: jd.experimental.ElasticStrategy) -> str:
        value = strategy.run(lambda: here().replica_id_in_sync_group)
        if strategy.island == 0:
            strategy.close()
            return ""
        with pytest.raises(ClusterError, match=r"view 0, and the islands have changed: this is view 1"):
            strategy.reduce("SUM", value, axis=None)
        return "told"

    assert Job(2).run(body)[1] == "told"


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_gradients_of_several_calls_make_one_update(compiled: bool) -> None:
    data = batches([8, 5, 1, 4, 8, 2])

    def body(strategy: jd.experimental.ElasticStrategy) -> Any:
        with strategy.scope():
            w = jd.Variable(jnp.zeros(4))
            optimizer = jd.Optimizer(optax.adam(RATE), [w], accumulate_steps=3)

        def replica(x: jax.Array, y: jax.Array) -> None:
            _, grads = jd.value_and_grad(lambda: jnp.mean((x @ w - y) ** 2), [w])()
            optimizer.apply_gradients(zip(grads, [w], strict=True), reduce_op="MEAN")

        step = jd.function(lambda x, y: strategy.run(replica, (x, y)))
        for number, (x, y) in enumerate(strategy.experimental_distribute_dataset(data)):
            if strategy.island == 0 and number == 4:
                strategy.close()  # in the middle of a cycle
                return None
            if compiled:
                step(x, y)
            else:
                strategy.run(replica, (x, y))
        return np.asarray(w)

    transform = optax.MultiSteps(optax.adam(RATE), every_k_schedule=3)
    expected: Any = jnp.zeros(4)
    state = transform.init(expected)
    with jax.numpy_dtype_promotion("standard"):
        for x, y in data:
            grads = jax.grad(lambda w, x=x, y=y: jnp.mean((x @ w - y) ** 2))(expected)
            updates, state = transform.update(grads, state, expected)
            expected = optax.apply_updates(expected, updates)
    for weights in Job(3).run(body)[1:]:
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


class Names(Observer):
    """Takes note of the names of events."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_end(self, event: Event) -> None:
        self.told.append(event.name)


@pytest.mark.parametrize("settings", [{}, {"sync_every": 2}])
def test_observers_are_told_the_names_of_functions_that_islands_run(settings: dict[str, Any]) -> None:
    def body(strategy: jd.Strategy) -> list[str]:
        with strategy.scope():
            count = jd.Variable(0, aggregation="SUM")

        @jd.function
        def counting() -> None:
            strategy.run(lambda: count.assign_add(jnp.int32(1)))

        names = Names()
        with observe(names, "dispatch"):
            counting()
        return names.told

    assert Job(1, **settings).run(body) == [["counting"]]


def test_what_is_not_supported_is_refused_by_name() -> None:
    with contextlib.closing(jd.experimental.ElasticStrategy()) as strategy:
        check_refusals(strategy)


def check_refusals(strategy: jd.experimental.ElasticStrategy) -> None:
    assert (strategy.islands, strategy.island, strategy.view, strategy.num_replicas_in_sync) == ((0,), 0, 0, 1)
    with strategy.scope():
        with pytest.raises(ArgumentError, match="ElasticStrategy has no variables of"):
            jd.Variable(0.0, synchronization=jd.VariableSynchronization.ON_READ)
        w = jd.Variable(1.0)
    with pytest.raises(VariableError, match="aggregation is NONE"):
        strategy.run(lambda: w.assign(2.0))
    value = strategy.run(lambda: jnp.ones(2))
    with pytest.raises(ClusterError, match=r"passed to a jd\.function"):
        jd.function(lambda value: strategy.run(lambda x: x, (value,)))(value)
    with pytest.raises(ArgumentError, match="one value for all islands"):
        strategy.reduce("SUM", jnp.ones(2), axis=None)
    with pytest.raises(VariableError, match="reduce it first"):
        strategy.extended.update(w, lambda v, x: v.assign(x), (value,))
    for refused in (
        lambda: strategy.run_steps(lambda batch: batch, None, 2),
        lambda: strategy.gather(value, axis=0),
        lambda: strategy.distribute_datasets_from_function(lambda context: []),
    ):
        with pytest.raises(NotImplementedError, match="ElasticStrategy has no"):
            refused()
    with pytest.raises(ArgumentTypeError, match="which is not for an island"):
        jd.experimental.ElasticStrategy(jd.CentralStorageStrategy())
    with pytest.raises(ArgumentError, match="silent_s is -1"):
        jd.experimental.ElasticStrategy(silent_s=-1)


def test_the_handler_of_preemptions_is_refused(tmp_path: Path) -> None:
    def island(_: jd.Strategy) -> None:
        with pytest.raises(NotImplementedError, match="save every so many steps"):
            jd.experimental.PreemptionCheckpointHandler(None, jd.Checkpoint(), str(tmp_path))

    Job(2).run(island)
