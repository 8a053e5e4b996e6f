"""What `ParameterServerStrategy` says of itself, and what it refuses before it starts anything."""

from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.parameter_servers.strategy import ParameterServerStrategy
from jaxtribute.errors import ArgumentError
from parameter_servers.clusters import coordinated, threads

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
