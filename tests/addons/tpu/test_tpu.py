"""`TPUStrategy` with CPU devices standing in for TPUs."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

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
        with pytest.raises(ArgumentError, match=r"has 1 device.*HINT: pass 2 numbers"):
            strategy.experimental_split_to_logical_devices(x, split)


@pytest.mark.usefixtures("tpus")
def test_replicas_of_several_logical_devices() -> None:
    strategy = jd.TPUStrategy(replica_shape={"rows": 2, "columns": 2}, layout={"w": ("rows", "columns")})
    assert strategy.num_replicas_in_sync == 1
    with strategy.scope():
        w = jd.Variable(np.arange(24, dtype=np.float32).reshape(4, 6), name="w")
    assert w.stored.addressable_shards[0].data.shape == (2, 3)
    places: list[Any] = []

    def program() -> Any:
        parts = [strategy.experimental_split_to_logical_devices(w * 1, partition) for partition in ([2, 2], [4, 1])]
        parts.append(strategy.experimental_replicate_to_logical_devices(w * 1))
        parts.append(strategy.experimental_assign_to_logical_device(w * 1, 3))
        places.extend(part.sharding.spec for part in parts)  # pyright: ignore[reportAttributeAccessIssue]
        return parts

    for part in strategy.run(program):
        np.testing.assert_array_equal(part, w.numpy())
    assert [tuple(place) for place in places] == [("rows", "columns"), (("rows", "columns"),), (), ()]
    with pytest.raises(ArgumentError, match=r"logical device 4.*HINT"):
        strategy.experimental_assign_to_logical_device(w.read_value(), 4)
    with pytest.raises(ArgumentError, match=r"\[1, 2\].*has 4 device.*HINT"):
        strategy.experimental_split_to_logical_devices(w.read_value(), [1, 2])


@pytest.mark.usefixtures("tpus")
def test_parts_that_the_axes_of_a_replica_do_not_form() -> None:
    strategy = jd.TPUStrategy(devices_per_replica=4)
    with pytest.raises(ArgumentError, match=r"\[2, 2\] cannot be formed.*HINT"):
        strategy.experimental_split_to_logical_devices(jnp.ones((2, 2)), [2, 2])


@pytest.mark.usefixtures("tpus")
def test_an_assignment_of_cores() -> None:
    assignment = jd.experimental.DeviceAssignment.build(computation_shape=[1, 1, 1, 2], num_replicas=2)
    strategy = jd.TPUStrategy(experimental_device_assignment=assignment)
    assert strategy.num_replicas_in_sync == 2
    assert strategy.extended.mesh.group == {"model": 2}
    with pytest.raises(ArgumentError, match=r"DeviceAssignment of 2 replicas of 2.*HINT"):
        jd.TPUStrategy(experimental_device_assignment=assignment, devices_per_replica=4)
