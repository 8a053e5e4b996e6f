"""What `ParameterServerStrategy` says of itself, and what it refuses before it starts anything."""

import functools
import warnings
from collections.abc import Generator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.parameter_servers.scheduling import starting
from jaxtribute._src.addons.parameter_servers.strategy import ParameterServerStrategy
from jaxtribute.cluster_resolver import SimpleClusterResolver
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ClusterSpecError
from jaxtribute.partitioners import FixedShardsPartitioner, MinSizePartitioner
from parameter_servers.clusters import coordinated, float32, threads

TASKS = {"ps": 1, "worker": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"replicas": 2}, "replicas is 2"),
        ({"staleness": -1}, "staleness is -1"),
    ],
)
def test_arguments_that_mean_nothing(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        jd.ParameterServerStrategy(TASKS, **arguments)


def test_a_cluster_without_workers_or_servers() -> None:
    for tasks in ({"ps": 1}, {"worker": 2}, jd.ClusterSpec({"worker": ["a:1"]})):
        with pytest.raises(ArgumentError, match="at least one task each"):
            jd.ParameterServerStrategy(tasks)


JOBS = {"chief": ["h:1"], "ps": ["h:2"], "worker": ["h:3"]}


def described(jobs: Any, task_type: str | None = None, task_id: int | None = None) -> SimpleClusterResolver:
    return SimpleClusterResolver(jd.ClusterSpec(jobs), task_type=task_type, task_id=task_id)


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (described({**JOBS, "trainer": ["h:4"]}), r"the jobs \['trainer'\]"),
        ({"ps": 1, "worker": 1, "workers": 2}, r"the jobs \['workers'\]"),
        (described({**JOBS, "chief": ["h:1", "h:4", "h:5"]}, "chief", 1), "3 tasks of job 'chief'"),
        ({**TASKS, "chief": 2}, "2 tasks of job 'chief'"),
        ({**TASKS, "evaluator": 2}, "2 tasks of job 'evaluator'"),
        (described(JOBS, "foobar"), "of job 'foobar'"),
        (described(JOBS, "foobar", 0), "of job 'foobar'"),
        (described({"ps": ["h:2"], "worker": ["h:3"]}, "chief", 0), "chief 0, and the cluster has 0 tasks"),
        (described(JOBS, "worker", 1), "worker 1, and the cluster has 1 tasks"),
        (described(JOBS, "worker", 0), "worker 0, and the cluster's chief makes the strategy"),
        (described(JOBS, "ps", 0), "ps 0, and the cluster's chief makes the strategy"),
        (described(JOBS, "evaluator", 0), "evaluator 0, and the cluster's chief makes the strategy"),
    ],
)
def test_a_cluster_that_is_none_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, cluster: Any, words: str
) -> None:
    monkeypatch.setattr(starting, "prepare_ray", lambda: pytest.fail("Ray was started"))
    with pytest.raises(ClusterSpecError, match=rf"(?s){words}.*HINT"):
        jd.ParameterServerStrategy(cluster)


def test_clusters_that_are_counted() -> None:
    for cluster in (TASKS, {**TASKS, "chief": 1, "evaluator": 1}, described(JOBS), described(JOBS, "chief", 0)):
        assert starting.tasks_of(cluster) == (1, 1)
    sparse = described({"chief": ["h:1"], "ps": {3: "h:2"}, "worker": {0: "h:3", 5: "h:4"}})
    assert starting.tasks_of(sparse) == (1, 2)


def test_one_replica_in_each_context() -> None:
    with threads(servers=2) as strategy:
        assert strategy.num_replicas_in_sync == 1
        assert strategy.cluster_resolver is None
        assert strategy.process_of("ps", 1) > 0
        assert len(strategy.extended.parameter_devices) == 2
        with strategy.scope():
            assert jd.get_strategy() is strategy
            v = jd.Variable(np.ones(2, np.float32), synchronization=jd.VariableSynchronization.ON_READ)
        assert not v.trainable
        assert v.values[0].shape == (2,)
        assert float(strategy.reduce("SUM", v, axis=0)) == 2


def test_on_a_worker_the_strategy_is_the_workers_own() -> None:
    with coordinated() as coordinator:
        mine = coordinator.strategy

        def look() -> tuple[bool, bool, int, bool]:
            strategy = jd.get_strategy()
            assert isinstance(strategy, ParameterServerStrategy)
            strategy.close()  # which is the coordinator's to do
            return strategy is mine, strategy.cluster is None, len(strategy.extended.parameter_devices), True

        assert coordinator.schedule(look).fetch() == (True, True, 1, True)
        assert mine is not None


def test_a_variable_of_another_strategy_is_refused() -> None:
    with threads() as strategy:
        with jd.OneDeviceStrategy("cpu:1").scope():
            other = jd.Variable(1.0)
        with pytest.raises(jd.errors.StrategyMixError), pytest.warns(UserWarning, match="runs on the coordinator"):
            strategy.run(lambda: other.assign_add(1.0))


@pytest.fixture(scope="module")
def sharding() -> Generator[Any]:
    with threads(servers=2, workers=1, partitioner=FixedShardsPartitioner(2)) as strategy:
        yield strategy


def devices_of(variable: Any) -> list[str]:
    return [f"ps {shard.server}" for shard in variable.layout.shards]


def test_variables_go_to_the_servers_in_turn() -> None:
    with threads(servers=3) as strategy:
        outside = jd.Variable(0.0)
        with strategy.scope():
            made = [jd.Variable(float(i)) for i in range(4)]
        assert [v.device for v in made] == [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in (0, 1, 2, 0)]
        assert "ps" not in outside.device
        assert [v.numpy().item() for v in made] == [0, 1, 2, 3]
        assert strategy.experimental_local_results(made[1]) == (1,)
        assert strategy.extended.variable_created_in_scope(made[0])
        assert not strategy.extended.variable_created_in_scope(outside)


def test_a_variable_beside_another(sharding: Any) -> None:
    extended = sharding.extended
    with sharding.scope():
        table = jd.Variable(np.zeros((5, 2), np.float32), name="table")
        jd.Variable(0.0)  # it is the other server's turn then
        with extended.colocate_vars_with(table.variables[1]):
            beside = jd.Variable(np.arange(4))
            with extended.colocate_vars_with(table.variables[0]):
                inner = jd.Variable(lambda: np.ones((3, 2)))
            again = jd.Variable(1.0)
        with extended.colocate_vars_with(table):
            like = jd.Variable(functools.partial(rows_of, shape=(5,)), dtype=np.int32)
            other = jd.Variable(np.zeros((4, 2)))
        free = jd.Variable(np.zeros((4, 2)))
    assert devices_of(table) == ["ps 0", "ps 1"]
    assert [devices_of(v) for v in (beside, inner, again, other)] == [["ps 1"], ["ps 0"], ["ps 1"], ["ps 0"]]
    assert not isinstance(beside, jd.coordinator.ShardedVariable)
    assert beside.device == table.variables[1].device
    np.testing.assert_array_equal(beside.numpy(), range(4))
    assert devices_of(like) == devices_of(table)
    assert [part.shape for part in like.variables] == [(3,), (2,)]
    np.testing.assert_array_equal(like.numpy(), range(5))
    assert len(devices_of(free)) == 2
    other_strategys = outside()
    with sharding.scope(), pytest.raises(ArgumentError), extended.colocate_vars_with(other_strategys):
        pass


def outside() -> jd.Variable:
    with jd.OneDeviceStrategy("cpu:0").scope():
        return jd.Variable(1.0)


def rows_of(shape: Any, shard_info: Any) -> np.ndarray:
    return np.arange(shape[0]) + shard_info.offset[0]


@pytest.mark.parametrize("counts", [None, [], [0, 1], [1], [2, 2], [1, 2], [1.5, 1], "21", [-1, 1]])
def test_a_partitioner_that_says_nothing_of_use(counts: Any) -> None:
    with threads(partitioner=lambda shape, dtype: counts) as strategy, strategy.scope():
        with pytest.raises(ArgumentError, match=r"variable_partitioner .*\(2, 2\).*HINT"):
            jd.Variable(np.zeros((2, 2)))
        assert float(jd.Variable(3.0)) == 3, "a number is not split"


def test_partitioners_of_ones_own_and_of_small_variables() -> None:
    seen: list[Any] = []

    def halves(shape: Any, dtype: Any) -> tuple[int, ...]:
        seen.append((shape, np.dtype(dtype)))
        return (2, *(1 for _ in shape[1:]))

    with threads(servers=2, partitioner=halves) as strategy, strategy.scope():
        made = jd.Variable(np.arange(10, dtype=np.int32).reshape(5, 2))
        assert [part.numpy().tolist() for part in made.variables] == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]]
        assert len(jd.Variable(np.zeros((1, 3))).layout.shards) == 1
    assert seen[0] == ((5, 2), np.int32)
    with threads(servers=2, partitioner=MinSizePartitioner(min_shard_bytes=1 << 20, max_shards=2)) as strategy:
        with strategy.scope():
            small = [jd.Variable(np.arange(10)) for _ in range(2)]
        assert [devices_of(v) for v in small] == [["ps 0"], ["ps 1"]]
    with threads(servers=2, partitioner=FixedShardsPartitioner(4)) as strategy, strategy.scope():
        few = jd.Variable([0, 1, 2])
        assert devices_of(few) == ["ps 0", "ps 1", "ps 0"]
        assert [part.numpy().tolist() for part in few.variables] == [[0], [1], [2]]


def test_arguments_of_a_variable_are_those_of_any(sharding: Any) -> None:
    with sharding.scope():
        local = jd.Variable(1.0, synchronization="on_read", aggregation="sum")
        assert not local.trainable
        assert (local.synchronization, local.aggregation) == (
            jd.VariableSynchronization.ON_READ, jd.VariableAggregation.SUM,
        )  # fmt: skip
        for wrong in ({"synchronization": "sometimes"}, {"aggregation": "product"}):
            with pytest.raises(ArgumentError, match="HINT"):
                jd.Variable(1.0, **wrong)  # pyright: ignore[reportArgumentType]
        for wrong in ({"trainable": "no"}, {"name": 3}):
            with pytest.raises(ArgumentTypeError, match="HINT"):
                jd.Variable(1.0, **wrong)  # pyright: ignore[reportArgumentType]
        for initial in (3, functools.partial(rows_of, shape=(4,))):
            with pytest.raises(ArgumentError, match=r"MEAN of dtype int32.*HINT"):
                jd.Variable(initial, dtype=np.int32, aggregation="mean")
        assert float(jd.Variable(3.0, aggregation="mean")) == 3


def test_running_on_the_coordinator_is_told_and_on_workers_not(sharding: Any) -> None:
    coordinator = jd.coordinator.ClusterCoordinator(sharding)
    with sharding.scope():
        total = jd.Variable(0.0)
    add = jd.function(lambda x: sharding.run(lambda x: total.assign_add(x).read_value(), args=(x,)))
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"strategy\.run\(.*\) runs on the coordinator.*HINT.*schedule") as told:
            assert sharding.run(lambda: 5) == 5
        assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="on the coordinator"):
        assert float(add(float32(1))) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(coordinator.schedule(add, (float32(1),)).fetch()) == 2
        assert coordinator.schedule(lambda: sharding.run(lambda: 7)).fetch() == 7
        assert float(sharding.reduce("SUM", coordinator.schedule(add, (jnp.float32(1),)).fetch(), axis=None)) == 3
