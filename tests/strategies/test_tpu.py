"""`TPUStrategy` with CPU devices standing in for TPUs."""

from __future__ import annotations

from collections.abc import Generator

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, DeviceError
from worker_programs import replica_context


@pytest.fixture
def tpus() -> Generator[None]:
    with jd.config.alias_devices({f"TPU:{i}": f"CPU:{i}" for i in range(4)}):
        yield


@pytest.mark.usefixtures("tpus")
def test_all_devices_one_replica_each() -> None:
    strategy = jd.TPUStrategy()
    assert strategy.num_replicas_in_sync == 4
    assert strategy.cluster_resolver is None
    assert strategy.extended.worker_devices[1] == "/job:localhost/replica:0/task:0/device:TPU:1"
    with strategy.scope():
        w = jd.Variable(jnp.ones(2), aggregation=jd.VariableAggregation.SUM)
    strategy.run(lambda: w.assign_add(jnp.ones(2)))
    np.testing.assert_array_equal(w.numpy(), [5, 5])
    ids = strategy.run(lambda: replica_context().replica_id_in_sync_group)
    assert int(strategy.reduce("SUM", ids, axis=None)) == 6


@pytest.mark.usefixtures("tpus")
def test_a_device_assignment() -> None:
    strategy = jd.experimental.TPUStrategy(device_assignment=["TPU:2", "TPU:1"])
    assert [name[-5:] for name in strategy.extended.worker_devices] == ["TPU:2", "TPU:1"]
    with pytest.raises(DeviceError, match="named twice"):
        jd.TPUStrategy(experimental_device_assignment=["TPU:2", "TPU:2"])
    with pytest.raises(DeviceError, match=r"CPU:7.*no TPU devices.*HINT"):
        jd.TPUStrategy(experimental_device_assignment=["CPU:7"])


def test_without_a_tpu() -> None:
    with pytest.raises(DeviceError, match=r"no TPU device here.*alias_devices"):
        jd.TPUStrategy()


@pytest.mark.usefixtures("tpus")
def test_one_logical_device_a_replica() -> None:
    strategy, x = jd.TPUStrategy(), jnp.ones((2, 3))
    assert strategy.experimental_assign_to_logical_device(x, 0) is x
    assert strategy.experimental_split_to_logical_devices(x, [1, 1]) is x
    assert strategy.experimental_replicate_to_logical_devices(x) is x
    with pytest.raises(ArgumentError, match=r"logical device 1.*HINT"):
        strategy.experimental_assign_to_logical_device(x, 1)
    for split in ([2, 1], [1]):
        with pytest.raises(ArgumentError, match=r"must be \[1, 1\].*HINT"):
            strategy.experimental_split_to_logical_devices(x, split)
